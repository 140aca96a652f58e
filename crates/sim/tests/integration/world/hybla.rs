//! bentpipe's Hybla on a lossy satellite behind a busy terrestrial link.

use bentpipe_sim::file::{Setting, Source};
use bentpipe_sim::{Unobserved, run};

/// With these seeds the first segments are lost again and again. The sender is then so slow that each segment
/// waits for the receiver's delayed acknowledgement, which is no queue: it must not hold its rate for ever.
#[test]
fn a_sender_made_slow_by_early_timeouts_becomes_fast_again() {
    let text = include_str!("../../../../../scenarios/pepsal.toml");
    let settings = [
        "duration=60s",
        "tcp.satellite.hybla.recovery_growth=true",
        "tcp.satellite.hybla.queue=true",
        "link.satellite.delay=87.5ms",
        "link.satellite.per=1%",
        "flow.wired.count=5",
    ];
    let settings = settings.map(|setting| setting.parse::<Setting>().unwrap());
    let scenario = Source::parse("scenarios/pepsal.toml", text).unwrap().with(&settings).unwrap();
    for seed in [7, 19] {
        let goodput_bps = run(&scenario, seed, &mut Unobserved).flows[0].goodput_bps;
        assert!(goodput_bps > 0.8e6, "seed {seed}: {goodput_bps} bit/s");
    }
}
