//! Compiles the eBPF programs with clang and generates their typed loaders.

use std::env;
use std::path::PathBuf;
use std::process::exit;

use libbpf_cargo::SkeletonBuilder;

/// Each is a `.bpf.c` in `src/bpf`.
const PROGRAMS: [&str; 5] = ["explicit", "hybla", "router", "xcp", "xcp_options"];

fn main() {
    println!("cargo:rerun-if-changed=src/bpf");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for program in PROGRAMS {
        let built = SkeletonBuilder::new()
            .source(format!("src/bpf/{program}.bpf.c"))
            .clang_args([
                "-mcpu=v3",
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
