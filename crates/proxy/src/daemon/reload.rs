//! A running daemon takes another configuration, and says what became of each change.

use serde::{Deserialize, Serialize};

use super::*;
use crate::config::{self, Change, Effect};
use crate::error::Refusal;

/// What a reload did, or why it did nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ReloadReport {
    /// Whether the daemon uses the new configuration. If not, everything is as it was.
    pub applied: bool,
    /// What differs from the configuration in force, and when it takes effect if the reload is applied.
    pub changes: Vec<Change>,
    /// Why the reload was not applied; empty if it was.
    pub refusals: Vec<Refusal>,
    /// What the operator should know of the new configuration: a leg that waits for its interface.
    pub notes: Vec<String>,
}

impl ReloadReport {
    /// A reload that is refused before anything is compared: the file cannot be read or has errors.
    pub fn unreadable(reason: impl Into<String>) -> Self {
        let refusal = Refusal { key: None, reason: reason.into(), possible: None };
        Self { refusals: vec![refusal], ..Self::default() }
    }

    /// Why it was refused, on one line; `None` if it was applied.
    pub fn refused(&self) -> Option<String> {
        let reasons: Vec<String> = self.refusals.iter().map(Refusal::to_string).collect();
        (!self.applied).then(|| reasons.join("; "))
    }

    /// The refusal that concerns this change.
    pub fn refusal_of(&self, change: &Change) -> Option<&Refusal> {
        let is_about = |key: &str| {
            change.key == key || key.strip_prefix(&change.key).is_some_and(|rest| rest.starts_with('.'))
        };
        self.refusals.iter().find(|refusal| refusal.key.as_deref().is_some_and(is_about))
    }

    /// Whether an upgrade to the same program would bring into effect what this reload could not.
    pub fn wants_upgrade(&self) -> bool {
        match self.applied {
            true => self.changes.iter().any(|change| change.effect == Effect::Upgrade),
            false => {
                !self.refusals.is_empty()
                    && self.refusals.iter().all(|refusal| refusal.possible == Some(Effect::Upgrade))
            }
        }
    }

    /// Writes it to the log: a line for each change, and one for the whole.
    pub fn log(&self) {
        if let Some(reasons) = self.refused() {
            tracing::error!("reload refused, the configuration stays as it was: {reasons}");
            return;
        }
        for change in &self.changes {
            match change.effect {
                Effect::NewConnections | Effect::Now => tracing::info!("reload: {change}"),
                Effect::Upgrade | Effect::Restart => tracing::warn!("reload: {change}"),
            }
        }
        tracing::info!("the configuration has been read again: {}", self.count());
    }

    /// How many changes there are, in words.
    pub fn count(&self) -> String {
        match self.changes.len() {
            0 => "nothing has changed".to_owned(),
            1 => "1 change".to_owned(),
            count => format!("{count} changes"),
        }
    }
}

/// The parts of a configuration that are made before anything changes.
struct Prospect {
    config: Config,
    listeners: Option<Listeners>,
}

impl Daemon {
    /// Reads the configuration again: rules, limits and legs are those of `config` for every new connection;
    /// existing ones continue as they are, under the new limits. If it is refused everything is as before.
    ///
    /// The report is in the log by then.
    pub fn reload(&mut self, config: &Config) -> ReloadReport {
        let changes = config::changes(&self.started_with, &self.last_read, config);
        let mut report =
            ReloadReport { changes, notes: host::waiting_legs(config), ..ReloadReport::default() };
        report.refusals = self.refusals(config, &report.changes);
        if report.refusals.is_empty() {
            match self.take_up(config) {
                Ok(()) => report.applied = true,
                Err(refusal) => report.refusals.push(refusal),
            }
        }
        report.log();
        report
    }

    /// Everything that cannot be changed while the daemon runs.
    fn refusals(&self, config: &Config, changes: &[Change]) -> Vec<Refusal> {
        let restart = |change: &Change| Refusal {
            possible: Some(Effect::Restart),
            ..Refusal::of(&change.key, "it takes effect only after a restart of the daemon")
        };
        let mut refusals: Vec<Refusal> =
            changes.iter().filter(|change| change.effect == Effect::Restart).map(restart).collect();
        refusals.extend(host::check(config).err().map(Refusal::from));
        let adapted = adapt(&self.services, config);
        refusals.extend(self.services.iter().filter_map(|service| service.check(&adapted).err()));
        if let Some(port) = config.bundle_port().filter(|&port| self.ports.has(port)) {
            refusals.push(Refusal::of(
                "bundle.port",
                format!(
                    "bundle.port = {port} is a port of listeners that this daemon opened at a reload; choose another, or restart it"
                ),
            ));
        }
        refusals
    }

    fn take_up(&mut self, read: &Config) -> Result<(), Refusal> {
        let Prospect { config, listeners } = self.prospect(read)?;
        let pairs = listeners.as_ref().map_or(&self.context.pairs, |(_, pairs, _)| pairs);
        if let Some(mut interception) = self.context.interception() {
            let takes = !self.context.shared.passes_by_order();
            let (interfaces, replaced) = (config.interfaces(), self.ports.all_but(pairs));
            let protected = config.protected_interfaces();
            interception.replace_rules(&plan(&config, &interfaces, pairs, &replaced, &protected), takes)?;
        }
        // From here on nothing fails.
        (self.context.config, self.last_read) = (config, read.clone());
        let listeners = listeners.map(|(legs, pairs, listeners)| {
            self.ports.take(&pairs);
            (self.context.legs, self.context.pairs) = (legs, pairs);
            listeners
        });
        let Context { config, shared, .. } = &self.context;
        shared.admission.set_limits(budget::admission_limits(config));
        // Before the first connection of a leg that has explicit rates now.
        self.services.iter_mut().for_each(|service| service.reload(&self.context));
        for (worker, listeners) in self.workers.iter().zip(listeners.into_iter().flatten()) {
            worker.send(Command::Listen(listeners));
        }
        for worker in &self.workers {
            worker.send(Command::SetFlowLimits(budget::flow_limits(config)));
        }
        self.publish();
        Ok(())
    }

    fn prospect(&self, read: &Config) -> Result<Prospect, Error> {
        let config = adapt(&self.services, read);
        let listeners =
            if self.needs_other_listeners(&config) { Some(self.open_listeners(&config)?) } else { None };
        Ok(Prospect { config, listeners })
    }

    /// Whether accepted sockets would be other than they are.
    fn needs_other_listeners(&self, config: &Config) -> bool {
        let of = |config: &Config| {
            let Config { legs, terrestrial, proxy, limits, .. } = config;
            (legs.clone(), terrestrial.clone(), proxy.port, limits.share(), config.weights())
        };
        of(config) != of(&self.context.config)
    }

    /// Listeners for the legs of `config`, on ports that no listener has which is still about to retire; for
    /// each worker.
    fn open_listeners(&self, config: &Config) -> Result<Listeners, Error> {
        let pairs = free_leg_pairs(config, &self.ports)?;
        check_ports(&pairs, &self.families)?;
        let legs = Arc::new(config.prepare_legs());
        let listeners =
            self.workers.iter().map(|_| open_listeners(&pairs, &self.families, &legs, config.proxy.mark));
        let listeners = listeners.collect::<Result<_, _>>()?;
        Ok((legs, pairs, listeners))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(key: &str, effect: Effect) -> Change {
        Change { key: key.to_owned(), before: Some("1".into()), after: None, effect }
    }

    fn refused(key: &str, possible: Option<Effect>) -> Refusal {
        Refusal { possible, ..Refusal::of(key, "no") }
    }

    #[test]
    fn a_refusal_belongs_to_its_key_or_to_the_leg_that_comes_with_it() {
        let report = ReloadReport {
            refusals: vec![refused("legs.geo.congestion", None), refused("proxy.mark", None)],
            ..ReloadReport::default()
        };
        let of = |key: &str| {
            report.refusal_of(&change(key, Effect::Now)).and_then(|refusal| refusal.key.as_deref())
        };
        assert_eq!(of("legs.geo.congestion"), Some("legs.geo.congestion"));
        assert_eq!(of("legs.geo"), Some("legs.geo.congestion"));
        assert_eq!(of("proxy.mark"), Some("proxy.mark"));
        assert_eq!((of("legs.geo.rate"), of("proxy"), of("legs.g")), (None, Some("proxy.mark"), None));
    }

    #[test]
    fn only_what_an_upgrade_can_do_asks_for_one() {
        let applied = |effects: &[Effect]| ReloadReport {
            applied: true,
            changes: effects.iter().map(|&effect| change("x", effect)).collect(),
            ..ReloadReport::default()
        };
        assert!(
            !applied(&[]).wants_upgrade() && !applied(&[Effect::Now, Effect::NewConnections]).wants_upgrade()
        );
        assert!(applied(&[Effect::Now, Effect::Upgrade]).wants_upgrade());
        let with = |possible: &[Option<Effect>]| ReloadReport {
            refusals: possible.iter().map(|&possible| refused("x", possible)).collect(),
            ..ReloadReport::default()
        };
        assert!(with(&[Some(Effect::Upgrade)]).wants_upgrade());
        assert!(!with(&[Some(Effect::Upgrade), Some(Effect::Restart)]).wants_upgrade());
        assert!(!with(&[Some(Effect::Upgrade), None]).wants_upgrade());
        assert!(!ReloadReport::unreadable("x:3: no").wants_upgrade());
    }
}
