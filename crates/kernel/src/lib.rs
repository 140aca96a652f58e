//! bentpipe-kernel
