//! Runs whose packets are followed.

use bentpipe_sim::file::Source;
use bentpipe_sim::{Observer, PacketStep, run};
use bentpipe_units::Time;

use super::go;

/// Follows everything that can be followed.
#[derive(Default)]
struct Follower {
    steps: usize,
}

impl Observer for Follower {
    fn watches_packets(&self) -> bool {
        true
    }

    fn captures_packets(&self) -> bool {
        true
    }

    fn follows_senders(&self) -> bool {
        true
    }

    fn follows_packets(&self) -> bool {
        true
    }

    fn step(&mut self, _now: Time, _step: &PacketStep) {
        self.steps += 1;
    }
}

/// What checks a run, as the verifier does, must have seen the run that nobody watches: its packets take a
/// shorter way through the code.
#[test]
fn a_run_has_the_same_results_whether_its_packets_are_followed_or_not() {
    let split: &[&str] = &["duration=20s"];
    let end_to_end: &[&str] = &["duration=20s", "flow.satellite.split=[]", "link.satellite.per=1%"];
    let shared: &[&str] = &["duration=40s"];
    let (pepsal, explicit) = (
        include_str!("../../../../../scenarios/pepsal.toml"),
        include_str!("../../../../../scenarios/explicit.toml"),
    );
    for (text, settings) in [(pepsal, split), (pepsal, end_to_end), (explicit, shared)] {
        let parsed: Vec<_> = settings.iter().map(|setting| setting.parse().unwrap()).collect();
        let scenario = Source::parse("scenario.toml", text).unwrap().with(&parsed).unwrap();
        let mut follower = Follower::default();
        let followed = run(&scenario, 7, &mut follower);
        assert_eq!(followed, go(&scenario, 7), "{settings:?}");
        assert!(follower.steps > 10_000, "{settings:?}: {} steps", follower.steps);
    }
}
