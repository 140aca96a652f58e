//! What is left of losses, what that costs, and how long it takes.

use std::time::Duration;

use bentpipe_link::{DirectionConfig, GilbertElliott};
use bentpipe_protect::{Class, Config};
use bentpipe_units::Probability;

use crate::world::{Summary, Traffic, World, geo};

/// Bursts of 20 packets in the mean, in which all are lost, so many that this share is lost.
fn bursts_of_20(share: f64) -> DirectionConfig {
    let p = |p| Probability::new(p).unwrap();
    let gilbert_elliott = GilbertElliott {
        good_to_bad: p(share / 20.0 / (1.0 - share)),
        bad_to_good: p(1.0 / 20.0),
        loss_in_good: p(0.0),
        loss_in_bad: p(1.0),
        slot: None,
    };
    DirectionConfig { gilbert_elliott: Some(gilbert_elliott), ..geo(0.0) }
}

fn saturate(direction: DirectionConfig, class: Class, seconds: u64) -> Summary {
    let mut world = World::established([direction.clone(), direction], &Config::default(), 7);
    world.traffic = Traffic::Saturating(class);
    world.run(Duration::from_secs(seconds));
    world.traffic = Traffic::None;
    world.run(Duration::from_secs(5));
    let summary = world.summary();
    println!(
        "{class:?} {:?} {:?}\n{summary:?}\n",
        world.sides[0].leg.stats().sender,
        world.sides[1].leg.stats().receiver
    );
    summary
}

#[test]
fn explore() {
    for class in Class::ALL {
        for direction in [geo(0.0), geo(0.01), geo(0.05), bursts_of_20(0.01), bursts_of_20(0.05)] {
            println!("{} {:?}", direction.per, direction.gilbert_elliott.map(|g| g.stationary_loss()));
            saturate(direction, class, 200);
        }
    }
}
