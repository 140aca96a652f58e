//! A neighbour and what is tried beside it.

use crate::attempt::{Attempt, Outcome};
use crate::common::Net;
use crate::observer::observe;
use crate::row::Row;
use crate::shell::{is_installed, kernel, version};
use crate::trial::Trial;

/// One neighbour of the table.
pub(crate) struct Neighbour<'a> {
    pub(crate) name: &'a str,
    /// The Debian package that it is from; empty for what the kernel itself does.
    pub(crate) package: &'a str,
    /// The programs that it takes.
    pub(crate) programs: &'a [&'a str],
    /// What the network has before the neighbour comes.
    pub(crate) prepare: &'a dyn Fn(&mut Trial),
    pub(crate) set_up: &'a dyn Fn(&mut Trial),
    pub(crate) attempts: &'a dyn Fn(&Trial) -> Vec<Attempt>,
    /// Whether it may come while the daemon has connections.
    pub(crate) may_come_late: bool,
    /// No check of the daemon's knows it: connections may be refused until it has seen that none comes
    /// through. None of them hangs, and then they pass.
    pub(crate) breaks: bool,
    pub(crate) notes: &'a str,
}

impl Default for Neighbour<'_> {
    fn default() -> Self {
        Self {
            name: "",
            package: "",
            programs: &[],
            prepare: &|_| {},
            set_up: &|_| {},
            attempts: &|trial| outward(&trial.net),
            may_come_late: true,
            breaks: false,
            notes: "",
        }
    }
}

impl Neighbour<'_> {
    /// Tries everything with the neighbour there before the daemon, and with the daemon there before the
    /// neighbour.
    pub(crate) fn run(&self) {
        if let Some(missing) = self.programs.iter().find(|program| !is_installed(program)) {
            return println!("skipped: needs {missing}: scripts/setup-peers neighbours");
        }
        let mut row = Row::default();
        let Some(unsplit) = self.before_the_daemon(&mut row) else { return };
        if self.may_come_late {
            self.after_the_daemon(&unsplit, &mut row);
        }
        row.write(self.name, &self.version(), self.notes);
    }

    fn before_the_daemon(&self, row: &mut Row) -> Option<Vec<Outcome>> {
        let mut trial = Trial::new()?;
        (self.prepare)(&mut trial);
        (self.set_up)(&mut trial);
        observe(&trial.net.gateway, "");
        let attempts = (self.attempts)(&trial);
        let unsplit = trial.without_daemon(&attempts);
        trial.with_daemon(&attempts, &unsplit, self.breaks, row);
        Some(unsplit)
    }

    fn after_the_daemon(&self, unsplit: &[Outcome], row: &mut Row) {
        let mut trial = Trial::new().expect("there was one before");
        (self.prepare)(&mut trial);
        let (set_up, attempts) =
            (|trial: &mut Trial| (self.set_up)(trial), |trial: &Trial| (self.attempts)(trial));
        trial.with_daemon_first(set_up, attempts, unsplit, self.breaks, row);
    }

    pub(crate) fn version(&self) -> String {
        if self.package.is_empty() { kernel() } else { version(self.package) }
    }
}

/// A connection of each family from the client to the server.
pub(crate) fn outward(net: &Net) -> Vec<Attempt> {
    [0, 1].map(|family| Attempt::outward(net, family, 8000)).to_vec()
}

/// One from the server to the client.
pub(crate) fn inward(net: &Net) -> Vec<Attempt> {
    [0, 1].map(|family| Attempt::inward(net, family, 8001)).to_vec()
}
