//! Modulation and coding of DVB-S2, and adaptive coding and modulation (ACM).

/// A modulation and code rate, MODCOD, of DVB-S2 with normal frames and no pilots.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Modcod {
    /// Bits per symbol, headers of frames deducted.
    pub(super) efficiency: f64,
    /// The lowest Es/N0 at which it is quasi error free (a packet error rate of 10⁻⁷), dB.
    pub(super) threshold_db: f64,
}

const fn modcod(efficiency: f64, threshold_db: f64) -> Modcod {
    Modcod { efficiency, threshold_db }
}

/// ETSI EN 302 307-1, table 13, from QPSK 1/4 to 32APSK 9/10, without those for which another one needs less
/// and carries more.
pub(super) const MODCODS: [Modcod; 20] = [
    // QPSK: 1/4, 1/3, 2/5, 1/2, 3/5, 2/3, 3/4, 4/5, 5/6.
    modcod(0.490_243, -2.35),
    modcod(0.656_448, -1.24),
    modcod(0.789_412, -0.30),
    modcod(0.988_858, 1.00),
    modcod(1.188_304, 2.23),
    modcod(1.322_253, 3.10),
    modcod(1.487_473, 4.03),
    modcod(1.587_196, 4.68),
    modcod(1.654_663, 5.18),
    // 8PSK: 3/5, 2/3, 3/4.
    modcod(1.779_991, 5.50),
    modcod(1.980_636, 6.62),
    modcod(2.228_124, 7.91),
    // 16APSK: 2/3, 3/4, 4/5, 5/6.
    modcod(2.637_201, 8.97),
    modcod(2.966_728, 10.21),
    modcod(3.165_623, 11.03),
    modcod(3.300_184, 11.61),
    // 32APSK: 3/4, 4/5, 5/6, 8/9.
    modcod(3.703_295, 12.73),
    modcod(3.951_571, 13.64),
    modcod(4.119_540, 14.28),
    modcod(4.397_854, 15.69),
];

impl Modcod {
    /// The packet error rate at an Es/N0: 10⁻⁷ at the threshold, 1 where it is lower by `waterfall_db`, on a
    /// straight line between them in the logarithm.
    pub(super) fn per(self, es_n0_db: f64, waterfall_db: f64) -> f64 {
        let below = (self.threshold_db - es_n0_db) / waterfall_db.max(1e-3);
        libm::pow(10.0, 7.0 * (below - 1.0)).min(1.0)
    }
}

/// The choice of the MODCOD by the Es/N0 that the terminal reports.
#[derive(Debug, Clone, Copy)]
pub(super) struct Acm {
    /// How far above its threshold a MODCOD is used, dB.
    pub(super) margin_db: f64,
    /// How much more it takes to go up to it, dB.
    pub(super) hysteresis_db: f64,
    current: Modcod,
}

impl Acm {
    /// In the state of a long time at this Es/N0.
    pub(super) fn new(margin_db: f64, hysteresis_db: f64, es_n0_db: f64) -> Self {
        Self { margin_db, hysteresis_db, current: best(es_n0_db - margin_db - hysteresis_db) }
    }

    pub(super) fn current(&self) -> Modcod {
        self.current
    }

    /// Follows a report.
    pub(super) fn follow(&mut self, es_n0_db: f64) {
        let usable = es_n0_db - self.margin_db;
        if usable < self.current.threshold_db {
            self.current = best(usable);
        }
        let higher = best(usable - self.hysteresis_db);
        if higher.efficiency > self.current.efficiency {
            self.current = higher;
        }
    }
}

/// The most efficient one that is quasi error free, or the most robust one if none is.
fn best(es_n0_db: f64) -> Modcod {
    let usable = MODCODS.iter().rfind(|modcod| modcod.threshold_db <= es_n0_db);
    *usable.unwrap_or(&MODCODS[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_modcod_needs_more_and_carries_more_than_the_one_before() {
        for pair in MODCODS.windows(2) {
            assert!(pair[0].threshold_db < pair[1].threshold_db, "{pair:?}");
            assert!(pair[0].efficiency < pair[1].efficiency, "{pair:?}");
            // Shannon's limit is the bound of each.
            let limit = libm::log2(1.0 + libm::pow(10.0, pair[1].threshold_db / 10.0));
            assert!((0.7..1.0).contains(&(pair[1].efficiency / limit)), "{pair:?}");
        }
    }

    #[test]
    fn errors_rise_from_quasi_none_to_all_below_the_threshold() {
        let modcod = MODCODS[5];
        let per = |above: f64| modcod.per(modcod.threshold_db + above, 0.4);
        assert!((per(0.0) / 1e-7 - 1.0).abs() < 1e-6);
        assert!((per(-0.2) / libm::pow(10.0, -3.5) - 1.0).abs() < 1e-6);
        assert!(per(-0.4) > 0.999_999 && per(-3.0) == 1.0);
        assert!(per(1.0) < 1e-20);
    }

    #[test]
    fn a_modcod_is_left_below_its_margin_and_taken_up_above_the_hysteresis() {
        let mut acm = Acm::new(0.3, 0.5, 12.5);
        let start = acm.current();
        assert_eq!(start.threshold_db, 11.61);
        let mut after = |es_n0_db| {
            acm.follow(es_n0_db);
            acm.current().threshold_db
        };
        assert_eq!([11.92, 11.90, 12.0, 12.40, 12.42].map(&mut after), [11.61, 11.03, 11.03, 11.03, 11.61]);
        assert_eq!([3.41, -20.0, 40.0].map(&mut after), [3.10, -2.35, 15.69]);
    }
}
