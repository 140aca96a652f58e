//! bentpipe-proxy
