//! Calling and answering: when the SYN, or the answer to one, goes out.

use std::time::Duration;

use bentpipe_units::Time;

use crate::SynSchedule;
use crate::segment::SynOptions;

/// The SYN, or the answer to one, and its timer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handshake {
    /// SYNs sent because their time had come.
    pub(crate) sent: u32,
    /// All SYNs sent: with more than one, it is unknown which one an answer is for.
    pub(crate) transmissions: u32,
    /// The same, of earlier calls too.
    pub(crate) all: u64,
    pub(crate) began_at: Time,
    pub(crate) timer: Time,
    pub(crate) due: bool,
    pub(crate) peer: SynOptions,
}

impl Handshake {
    pub(crate) const IDLE: Handshake = Handshake {
        sent: 0,
        transmissions: 0,
        all: 0,
        began_at: Time::ZERO,
        timer: Time::MAX,
        due: false,
        peer: SynOptions { mss: None, window_scale: None, sack_permitted: false },
    };

    pub(crate) fn begin(&mut self, now: Time) {
        *self = Self { sent: 1, all: self.all, began_at: now, due: true, ..Self::IDLE };
    }

    /// The SYN's time has come again; false when it is to be given up.
    pub(crate) fn expire(
        &mut self,
        now: Time,
        schedule: &SynSchedule,
        user_timeout: Option<Duration>,
    ) -> bool {
        let late = user_timeout.is_some_and(|limit| now >= self.began_at + limit);
        self.due = !late && schedule.wait(self.sent).is_some();
        self.sent += 1;
        self.due
    }

    /// A SYN is sent. An answer to a repeated SYN is none of the schedule's, but the wait that is running
    /// begins anew, as in Linux. With a user timeout the last wait ends with it.
    pub(crate) fn sent_at(&mut self, now: Time, schedule: &SynSchedule, user_timeout: Option<Duration>) {
        self.all += 1;
        self.transmissions += 1;
        self.due = false;
        let timer = schedule.wait(self.sent - 1).map_or(Time::MAX, |wait| now + wait);
        let deadline = user_timeout.map_or(Time::MAX, |limit| self.began_at + limit);
        self.timer = timer.min(deadline.max(now));
    }
}
