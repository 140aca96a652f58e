#[test]
fn loads() {
    let xcp = bentpipe_kernel::xcp::Xcp::acquire(bentpipe_kernel::xcp::XcpParameters {
        p_xcp: true,
        capacity: None,
        fallback: "cubic",
    });
    let xcp = match xcp {
        Ok(x) => x,
        Err(e) => panic!("{e} {e:?}"),
    };
    println!("{}", xcp.name());
}
