//! Compiles the arithmetic that the kernel's congestion controls and this crate share (`core/`).

fn main() {
    println!("cargo:rerun-if-changed=core");
    cc::Build::new().file("core/core.c").std("gnu11").opt_level(2).warnings(true).compile("bentpipe_core");
}
