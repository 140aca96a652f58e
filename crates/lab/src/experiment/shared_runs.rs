//! Runs in virtual time that several experiments have in common: the same scenario and seed give the same
//! result, so only the first one runs it.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bentpipe_sim::{RunResult, Scenario, Unobserved, run};

/// The results so far of the runs in virtual time that nothing observes. Experiments that are given the same
/// ones do not repeat each other's.
#[derive(Debug, Clone, Default)]
pub struct SharedRuns(Arc<Mutex<HashMap<u64, Vec<Known>>>>);

/// What has run of one scenario, by seed.
#[derive(Debug)]
struct Known {
    scenario: Scenario,
    results: HashMap<u64, Arc<RunResult>>,
}

impl SharedRuns {
    /// The result of a run. Of equal ones that are asked for at the same moment more than one may run.
    pub(super) fn run(&self, scenario: &Scenario, seed: u64) -> RunResult {
        let key = key_of(scenario);
        let known = self.known(&key, |known| known.results.get(&seed).cloned());
        if let Some(result) = known {
            return RunResult::clone(&result);
        }
        let result = run(scenario, seed, &mut Unobserved);
        let kept = Arc::new(result.clone());
        self.known(&key, |known| known.results.insert(seed, kept));
        result
    }

    /// How many runs it knows.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let all = self.0.lock().expect("nobody panics with the lock");
        all.values().flatten().map(|known| known.results.len()).sum()
    }

    fn known<T>(&self, key: &Scenario, act: impl FnOnce(&mut Known) -> T) -> T {
        let mut all = self.0.lock().expect("nobody panics with the lock");
        let alike = all.entry(hash_of(key)).or_default();
        let index = alike.iter().position(|known| known.scenario == *key).unwrap_or_else(|| {
            alike.push(Known { scenario: key.clone(), results: HashMap::new() });
            alike.len() - 1
        });
        act(&mut alike[index])
    }
}

/// A scenario without what does not change its results: what it is for, and when samples are taken.
fn key_of(scenario: &Scenario) -> Scenario {
    Scenario { title: String::new(), sample_interval: Duration::ZERO, ..scenario.clone() }
}

/// Of what most scenarios differ in.
fn hash_of(scenario: &Scenario) -> u64 {
    let mut hasher = DefaultHasher::new();
    (scenario.duration, scenario.links.len(), scenario.flows.len()).hash(&mut hasher);
    for link in &scenario.links {
        for way in [&link.config.forward, &link.config.reverse] {
            (way.rate, way.delay, way.queue, way.per.get().to_bits()).hash(&mut hasher);
        }
    }
    scenario.flows.iter().for_each(|flow| (flow.bytes, flow.start, flow.legs.len()).hash(&mut hasher));
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use bentpipe_sim::file::Source;

    use super::*;

    fn scenario(title: &str, bytes: &str) -> Scenario {
        let text = include_str!("../../../../scenarios/geo-download.toml");
        let setting = format!("flow.split.bytes={bytes}").parse().unwrap();
        let scenario = Source::parse("geo-download.toml", text).unwrap().with(&[setting]).unwrap();
        Scenario { title: title.to_owned(), ..scenario }
    }

    #[test]
    fn a_run_is_repeated_for_another_scenario_or_seed_and_not_for_another_title() {
        let shared = SharedRuns::default();
        let (first, again) = (scenario("one", "1MB"), scenario("another", "1MB"));
        let result = shared.run(&first, 7);
        assert_eq!(result, run(&first, 7, &mut Unobserved));
        assert_eq!((shared.run(&again, 7), shared.len()), (result.clone(), 1));
        assert_ne!(shared.run(&scenario("one", "2MB"), 7), result);
        shared.run(&first, 8);
        assert_eq!(shared.len(), 3);
    }
}
