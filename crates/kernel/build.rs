//! Compiles the eBPF programs with clang and generates their typed loaders.

use std::env;
use std::path::PathBuf;
use std::process::exit;

use libbpf_cargo::SkeletonBuilder;

fn main() {
    println!("cargo:rerun-if-changed=src/bpf");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let built = SkeletonBuilder::new()
        .source("src/bpf/hybla.bpf.c")
        .clang_args(["-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-Wno-unused-parameter"])
        .build_and_generate(out.join("hybla.skel.rs"));
    if let Err(error) = built {
        eprintln!("cannot compile the eBPF program of Hybla: {error:#}");
        eprintln!("this needs clang and the headers of libelf and zlib: `make setup` installs them");
        exit(1);
    }
}
