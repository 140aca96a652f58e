//! Straight legs and turns of a vehicle.

use crate::random::Bernoulli;

/// Straight legs of random lengths, and turns between them by random angles to either side.
#[derive(Debug, Clone)]
pub(super) struct Manoeuvres {
    /// How long a leg is straight, seconds.
    straight_s: [f64; 2],
    /// By how much a turn changes the heading, radians.
    turn: [f64; 2],
    straight_left_s: f64,
    turn_left: f64,
    side: f64,
}

impl Manoeuvres {
    /// Begins with a straight leg. Takes a draw.
    pub(super) fn new(straight_s: [f64; 2], turn: [f64; 2], random: &mut Bernoulli) -> Self {
        let straight_left_s = random.between(straight_s);
        Self { straight_s, turn, straight_left_s, turn_left: 0.0, side: 0.0 }
    }

    /// What the helm does in the next `step_s` seconds: 1 turns to the right, -1 to the left, 0 goes
    /// straight. In the step before, the heading has changed by `turned`, radians.
    pub(super) fn helm(&mut self, turned: f64, step_s: f64, random: &mut Bernoulli) -> f64 {
        if self.turn_left > 0.0 {
            self.turn_left -= turned.abs();
            if self.turn_left <= 0.0 {
                self.straight_left_s = random.between(self.straight_s);
                self.side = 0.0;
            }
        } else {
            self.straight_left_s -= step_s;
            if self.straight_left_s <= 0.0 {
                self.turn_left = random.between(self.turn);
                self.side = if random.between([-1.0, 1.0]) < 0.0 { -1.0 } else { 1.0 };
            }
        }
        self.side
    }
}
