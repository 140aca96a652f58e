//! Hybla in the running kernel: registered while someone needs it, and gone afterwards.

use bentpipe_kernel::{congestion, hybla};

/// Why this machine cannot run these tests, if it cannot.
fn missing() -> Option<&'static str> {
    // SAFETY: geteuid only returns a number.
    let uid = unsafe { libc::geteuid() };
    if uid != 0 {
        return Some("root, to load an eBPF congestion control");
    }
    (!std::path::Path::new("/sys/kernel/btf/vmlinux").exists()).then_some("a kernel with BTF")
}

#[test]
fn hybla_is_registered_while_it_is_held_and_unregistered_after_the_last_holder() {
    if let Some(need) = missing() {
        println!("skipped: needs {need}");
        return;
    }
    let first = hybla::Hybla::acquire().unwrap();
    let second = hybla::Hybla::acquire().unwrap();
    let name = first.name().to_owned();
    let registered = || congestion::available().contains(&name);
    assert_eq!(second.name(), name, "one process has one copy");
    drop(first);
    assert!(registered(), "the second holder still needs it");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    bentpipe_kernel::sockopt::set_congestion(&listener, &name).unwrap();
    drop(second);
    assert!(!registered(), "a socket that uses it does not keep the name");
    drop(listener);
}

/// It does not hold the complete one, which the test above wants gone.
#[test]
fn the_published_hybla_has_a_name_of_its_own_and_does_not_keep_queues_short() {
    if let Some(need) = missing() {
        println!("skipped: needs {need}");
        return;
    }
    let published = congestion::resolve(congestion::HYBLA_PUBLISHED, "satellite", None);
    assert_eq!(published.configured_name(), congestion::HYBLA_PUBLISHED);
    assert!(published.name().starts_with(hybla::PUBLISHED_NAME) && !hybla::is_hybla(published.name()));
    assert!(!published.keeps_queue_short());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    bentpipe_kernel::sockopt::set_congestion(&listener, published.name()).unwrap();
}
