//! The typed loaders of the eBPF programs, which `build.rs` generates.
#![allow(
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    missing_docs,
    unreachable_pub,
    unused,
    unsafe_op_in_unsafe_fn,
    reason = "generated code"
)]

pub(crate) mod cross_traffic {
    include!(concat!(env!("OUT_DIR"), "/cross_traffic.skel.rs"));
}
pub(crate) mod divert {
    include!(concat!(env!("OUT_DIR"), "/divert.skel.rs"));
}
pub(crate) mod explicit {
    include!(concat!(env!("OUT_DIR"), "/explicit.skel.rs"));
}
pub(crate) mod hybla {
    include!(concat!(env!("OUT_DIR"), "/hybla.skel.rs"));
}
pub(crate) mod router {
    include!(concat!(env!("OUT_DIR"), "/router.skel.rs"));
}
pub(crate) mod xcp {
    include!(concat!(env!("OUT_DIR"), "/xcp.skel.rs"));
}
pub(crate) mod xcp_options {
    include!(concat!(env!("OUT_DIR"), "/xcp_options.skel.rs"));
}
