//! Compiles the eBPF programs with clang and generates their typed loaders.

use std::env;
use std::path::PathBuf;
use std::process::exit;

use libbpf_cargo::SkeletonBuilder;

/// Each is a `.bpf.c` in `src/bpf`, with its instruction set: `v3` has the atomics of Linux 5.12; with it clang adds pointers in 32
/// bits where the result has no more, which the kernel refuses.
const PROGRAMS: [(&str, &str); 5] =
    [("explicit", "v3"), ("hybla", "v3"), ("router", "v2"), ("xcp", "v3"), ("xcp_options", "v3")];

fn main() {
    println!("cargo:rerun-if-changed=src/bpf");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for (program, cpu) in PROGRAMS {
        let built = SkeletonBuilder::new()
            .source(format!("src/bpf/{program}.bpf.c"))
            .clang_args([
                &format!("-mcpu={cpu}"),
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
