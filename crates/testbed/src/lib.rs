//! bentpipe-testbed
