//! Which tests run side by side: most of them wait for something most of the time, but one that measures time
//! must run alone.

use std::cell::Cell;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static COMPANY: RwLock<()> = RwLock::new(());

thread_local! {
    /// This thread's test has what it waited for.
    static HAS_TURN: Cell<bool> = const { Cell::new(false) };
}

/// The turn of a test that runs beside others. Its networks hold it.
pub struct Beside {
    _turn: RwLockReadGuard<'static, ()>,
}

/// The turn of a test beside which no other runs.
pub struct Alone {
    _turn: RwLockWriteGuard<'static, ()>,
}

/// Waits while a test runs alone. `None` if this thread's test has its turn already: a test may make several
/// networks, of which the first must live as long as the others.
pub fn beside() -> Option<Beside> {
    (!HAS_TURN.get()).then(|| {
        let turn = COMPANY.read().unwrap_or_else(PoisonError::into_inner);
        HAS_TURN.set(true);
        Beside { _turn: turn }
    })
}

/// Waits until no other test runs. To be called before the test's first network is made.
pub fn alone() -> Alone {
    let turn = COMPANY.write().unwrap_or_else(PoisonError::into_inner);
    HAS_TURN.set(true);
    Alone { _turn: turn }
}

impl Drop for Beside {
    fn drop(&mut self) {
        HAS_TURN.set(false);
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        HAS_TURN.set(false);
    }
}
