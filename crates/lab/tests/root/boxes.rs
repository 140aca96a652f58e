//! A box at each side of the satellite, both speaking XCP, or one of them alone. Bounds are generous: what is
//! reached on a quiet machine is in docs/experiments.

use std::time::Duration;

use crate::common::missing;
use bentpipe_lab::trial::Trial;
use bentpipe_link::agent::xcp::{Variant, XcpConfig};
use bentpipe_testbed::with_timing_retries;
use bentpipe_units::Rate;

const RATE: Rate = Rate::mbps(10);
const RTT: Duration = Duration::from_millis(600);

/// Twenty seconds of a download over a link that loses one packet in a hundred, when it has begun.
fn boxes(gateway: &str, terminal: &str) -> Trial {
    let warmup = Duration::from_secs(5);
    Trial {
        terminal: Some(terminal.to_owned()),
        warmup,
        lasts: warmup + Duration::from_secs(20),
        ..Trial::of_a_minute(RATE, RTT, 0.01, gateway, 1)
    }
}

#[test]
fn two_boxes_with_p_xcp_fill_a_link_that_loses_packets() {
    if missing() {
        return;
    }
    with_timing_retries(|| {
        let measured = boxes("p-xcp", "p-xcp").run().unwrap();
        println!("{:.3} of the limit, queue {:.3} s", measured.of_limit(), measured.median_queue_s());
        assert!(measured.of_limit() > 0.75, "{}", measured.of_limit());
        assert!(measured.queue_drops < 0.01, "{}", measured.queue_drops);
    });
}

#[test]
fn a_router_that_is_further_on_is_obeyed_as_well() {
    if missing() {
        return;
    }
    with_timing_retries(|| {
        // The boxes think that the link carries twice as much; the modem behind the gateway knows better.
        let router = XcpConfig { variant: Variant::PXcp, ..XcpConfig::with_capacity(RATE) };
        let trial =
            Trial { configured: Some(Rate::mbps(20)), router: Some(router), ..boxes("p-xcp", "p-xcp") };
        let measured = trial.run().unwrap();
        println!("{:.3} of the limit, queue {:.3} s", measured.of_limit(), measured.median_queue_s());
        assert!(measured.of_limit() > 0.75, "{}", measured.of_limit());
        assert!(measured.queue_drops < 0.01, "{}", measured.queue_drops);
    });
}

#[test]
fn a_box_with_a_silent_peer_performs_like_hybla() {
    if missing() {
        return;
    }
    with_timing_retries(|| {
        let (alone, hybla) = (boxes("p-xcp", "hybla"), boxes("hybla", "hybla"));
        let [alone, hybla] = std::thread::scope(|scope| {
            [alone, hybla]
                .map(|trial| scope.spawn(move || trial.run().unwrap().of_limit()))
                .map(|run| run.join().unwrap())
        });
        println!("{alone:.3} of the limit, {hybla:.3} with Hybla at both");
        assert!(hybla > 0.1 && alone > 0.6 * hybla, "{alone:.3} of the limit, {hybla:.3} with Hybla");
    });
}
