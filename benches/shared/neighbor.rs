//! Somebody else on the same machine, who takes an eighth of each of its cores.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{available_parallelism, sleep, spawn};
use std::time::{Duration, Instant};

/// Works for so long, and does nothing for seven times as long.
const BUSY: Duration = Duration::from_millis(2);

/// Dropped, it does nothing more.
pub struct Neighbor(Arc<AtomicBool>);

impl Neighbor {
    pub fn start() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        for _ in 0..available_parallelism().unwrap().get() {
            let is_over = is_over.clone();
            spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let started = Instant::now();
                    while started.elapsed() < BUSY {
                        spin_loop();
                    }
                    sleep(7 * BUSY);
                }
            });
        }
        Self(is_over)
    }
}

impl Drop for Neighbor {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
