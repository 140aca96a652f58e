//! bentpipe-lab
