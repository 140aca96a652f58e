//! bentpipe-link
