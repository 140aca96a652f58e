//! Compiles the eBPF programs with clang and generates their typed loaders.

use std::env;
use std::path::PathBuf;
use std::process::exit;

use libbpf_cargo::SkeletonBuilder;

/// Each `src/bpf/NAME.bpf.c`, and what it is called.
const PROGRAMS: [(&str, &str); 2] = [("hybla", "Hybla"), ("router", "the XCP router")];

fn main() {
    println!("cargo:rerun-if-changed=src/bpf");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for (name, title) in PROGRAMS {
        let built = SkeletonBuilder::new()
            .source(format!("src/bpf/{name}.bpf.c"))
            .clang_args(["-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-Wno-unused-parameter"])
            .build_and_generate(out.join(format!("{name}.skel.rs")));
        if let Err(error) = built {
            eprintln!("cannot compile the eBPF program of {title}: {error:#}");
            eprintln!("this needs clang and the headers of libelf and zlib: `make setup` installs them");
            exit(1);
        }
    }
}
