//! What the program asks the system for, in a simulation: random bytes, which follow from the seed, and the time, which follows
//! from tokio's paused clock. Elsewhere it is the system's, and a thread may be slow to read it. Both stand in the place of the functions of the C library, so that no line of the product, of
//! the standard library or of a dependency can have either from elsewhere.

use std::cell::Cell;
use std::ffi::{c_int, c_long, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use std::{mem, process, thread};

use tokio::time::Instant;

/// When every simulation begins, by the wall clock and by that of the machine.
const WALL_AT_FIRST: Duration = Duration::from_secs(1_760_000_000);
const BOOT_AT_FIRST: Duration = Duration::from_secs(100_000);

static IS_SIMULATED: AtomicBool = AtomicBool::new(false);
static RANDOM: AtomicU64 = AtomicU64::new(0);
static BEGAN: OnceLock<Instant> = OnceLock::new();
/// What was told last of the time since then, in nanoseconds.
static TOLD: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// tokio's clock may ask the system itself.
    static IS_ASKING: Cell<bool> = const { Cell::new(false) };
    /// Before which clock this thread stands still, and for how long.
    static STALL: Cell<Option<(libc::clockid_t, Duration)>> = const { Cell::new(None) };
}

pub use libc::{CLOCK_BOOTTIME, CLOCK_REALTIME};

/// Until it is dropped, its thread stands still each time before it reads a clock, as one that has to give way to others.
pub struct Stall(());

impl Stall {
    /// From here on, before each look at this clock, for so long.
    pub fn before(clock: libc::clockid_t, pause: Duration) -> Self {
        STALL.set(Some((clock, pause)));
        Self(())
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        STALL.set(None);
    }
}

/// From here on nothing is random, and no time passes.
pub fn simulate(seed: u64) {
    RANDOM.store(seed, Ordering::SeqCst);
    IS_SIMULATED.store(true, Ordering::SeqCst);
}

/// From here on time passes as tokio's paused clock says. To be called in its runtime.
pub fn follow_tokio() {
    let _ = BEGAN.set(Instant::now());
}

/// The processor time that this process took.
pub fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Keeps this thread, and all programs that it starts, on one of the cores that it may use.
pub fn stay_on_one_core() {
    // SAFETY: zeros are a set without cores, and both calls are told how large theirs is.
    unsafe {
        let (mut all, mut one): (libc::cpu_set_t, libc::cpu_set_t) = (mem::zeroed(), mem::zeroed());
        libc::sched_getaffinity(0, size_of_val(&all), &raw mut all);
        let first = (0..libc::CPU_SETSIZE as usize).find(|core| libc::CPU_ISSET(*core, &all));
        libc::CPU_SET(first.unwrap_or(0), &mut one);
        libc::sched_setaffinity(0, size_of_val(&one), &raw const one);
    }
}

fn elapsed() -> Duration {
    if IS_ASKING.replace(true) {
        return Duration::ZERO;
    }
    let elapsed = BEGAN.get().map(Instant::elapsed).unwrap_or_default();
    IS_ASKING.set(false);
    TOLD.store(elapsed.as_nanos() as u64, Ordering::Relaxed);
    elapsed
}

/// Ends the process with this line where no time passes for so much time of the processor: something goes round in circles.
pub fn end_if_time_stands_still_for(processor_time: Duration, line: String) {
    thread::spawn(move || {
        let mut last = (0, self::processor_time());
        loop {
            thread::sleep(Duration::from_millis(100));
            let (told, used) = (TOLD.load(Ordering::Relaxed), self::processor_time());
            if told != last.0 {
                last = (told, used);
            } else if used - last.1 > processor_time {
                println!("{line}");
                process::exit(1);
            }
        }
    });
}

/// SplitMix64: each number follows from how many were drawn before.
fn next_random() -> u64 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut word = RANDOM.fetch_add(STEP, Ordering::SeqCst).wrapping_add(STEP);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// In the place of the system's.
#[unsafe(no_mangle)]
extern "C" fn getrandom(buffer: *mut c_void, length: usize, flags: c_uint) -> isize {
    if !IS_SIMULATED.load(Ordering::SeqCst) {
        // SAFETY: the caller's arguments, as they are.
        return unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) as isize };
    }
    // SAFETY: the caller has a buffer of this length.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
    for part in bytes.chunks_mut(size_of::<u64>()) {
        part.copy_from_slice(&next_random().to_ne_bytes()[..part.len()]);
    }
    length as isize
}

/// In the place of the system's.
#[unsafe(no_mangle)]
extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> c_int {
    if let Ok(Some((_, pause))) = STALL.try_with(|stall| stall.get().filter(|(of, _)| *of == clock)) {
        thread::sleep(pause);
    }
    let at_first = match clock {
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => WALL_AT_FIRST,
        libc::CLOCK_MONOTONIC
        | libc::CLOCK_MONOTONIC_COARSE
        | libc::CLOCK_MONOTONIC_RAW
        | libc::CLOCK_BOOTTIME => BOOT_AT_FIRST,
        _ => Duration::MAX,
    };
    if at_first == Duration::MAX || !IS_SIMULATED.load(Ordering::SeqCst) {
        // SAFETY: the caller's arguments, as they are.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) as c_int };
    }
    let now = at_first + elapsed();
    // SAFETY: the caller has a place for a time.
    unsafe {
        *time = libc::timespec {
            tv_sec: now.as_secs() as libc::time_t,
            tv_nsec: c_long::from(now.subsec_nanos() as i32),
        };
    }
    0
}
