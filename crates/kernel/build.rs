//! Compiles the eBPF programs with clang and generates their typed loaders.

use std::env;
use std::path::PathBuf;
use std::process::exit;

use libbpf_cargo::SkeletonBuilder;

/// The arithmetic that virtual time shares with the kernel.
const CORE: &str = "../tcp/core";

/// Each is a `.bpf.c` in a folder, with its instruction set: `v3` has the atomics of Linux 5.12; with it
/// clang adds pointers in 32 bits where the result fits, which the kernel refuses. The last one is for tests:
/// it runs the arithmetic on generated events.
const PROGRAMS: [(&str, &str, &str); 8] = [
    ("src/bpf", "cross_traffic", "v2"),
    ("src/bpf", "divert", "v2"),
    ("src/bpf", "explicit", "v3"),
    ("src/bpf", "hybla", "v3"),
    ("src/bpf", "router", "v2"),
    ("src/bpf", "xcp", "v3"),
    ("src/bpf", "xcp_options", "v3"),
    ("tests/bpf", "parity", "v3"),
];

fn main() {
    for folder in ["src/bpf", "tests/bpf", CORE] {
        println!("cargo:rerun-if-changed={folder}");
    }
    // Where Debian's linux/bpf.h has its headers of the machine, which clang's bpf target does not look for.
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for (folder, program, cpu) in PROGRAMS {
        let built = SkeletonBuilder::new()
            .source(format!("{folder}/{program}.bpf.c"))
            .clang_args([
                &format!("-mcpu={cpu}"),
                "-Isrc/bpf",
                &format!("-I{CORE}"),
                "-idirafter",
                &format!("/usr/include/{arch}-linux-gnu"),
                "-Wall",
                "-Wextra",
                "-Werror",
                "-Wno-unused-function",
                "-Wno-unused-parameter",
            ])
            .build_and_generate(out.join(format!("{program}.skel.rs")));
        if let Err(error) = built {
            eprintln!("cannot compile the eBPF program {program}: {error:#}");
            eprintln!("this needs clang and the headers of libelf and zlib: `make setup` installs them");
            exit(1);
        }
    }
}
