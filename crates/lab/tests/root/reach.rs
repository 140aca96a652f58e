//! How far this machine's TCP reaches, measured where nobody waits long: two delays that every kernel
//! reaches.

use std::time::Duration;

use bentpipe_lab::reach::measure;
use bentpipe_testbed::{Need, require};

const NEEDS: &[Need] = &[Need::Privileges, Need::Namespaces, Need::Tun, Need::Program("ip")];

#[test]
fn tcp_reaches_over_a_tenth_of_a_second_and_over_a_whole_one() {
    if let Err(missing) = require(NEEDS) {
        println!("skipped: needs root: {missing}");
        return;
    }
    let delays = [Duration::from_millis(100), Duration::from_secs(1)];
    let mut ended = Vec::new();
    let found = measure(&delays, |probe| ended.push(probe.delay_s)).unwrap();
    assert_eq!(found.probes.iter().map(|probe| probe.delay_s).collect::<Vec<_>>(), [0.1, 1.0]);
    ended.sort_by(f64::total_cmp);
    assert_eq!(ended, [0.1, 1.0], "each probe is told of once");
    for probe in &found.probes {
        assert!(probe.works() && probe.error.is_none(), "{probe:?}");
        // A round trip for the handshake, another for the byte: never sooner, however idle the machine.
        assert!(probe.connected_s.unwrap() >= 2.0 * probe.delay_s, "{probe:?}");
        assert!(probe.answered_s.unwrap() >= 4.0 * probe.delay_s, "{probe:?}");
    }
    assert_eq!((found.largest_working_s(), found.smallest_failing_s()), (Some(1.0), None));
    assert!(found.kernel.contains('.'), "{}", found.kernel);
}
