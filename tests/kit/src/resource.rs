//! What a lock protects, with the care that its users take.

/// What a resource asks of those who use it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Discipline {
    /// To show the number before the first read, and at the write.
    #[default]
    Claim,
    /// To show the number at the write alone.
    CheckAtWrite,
    /// Nothing, as if the lock were enough.
    Unfenced,
}

/// Something that a lock protects. Unless it is unfenced, it keeps the largest number that it was shown, and refuses
/// smaller ones.
#[derive(Debug, Default)]
pub struct Resource {
    discipline: Discipline,
    fence: u64,
    version: u64,
    updates: u64,
    lost: u64,
}

impl Resource {
    pub fn with(discipline: Discipline) -> Self {
        Self { discipline, ..Self::default() }
    }

    /// Claims it, where it is claimed, and reads its version; nothing where it refuses.
    pub fn read(&mut self, number: u64) -> Option<u64> {
        if self.discipline == Discipline::Claim {
            if number < self.fence {
                return None;
            }
            self.fence = number;
        }
        Some(self.version)
    }

    pub fn discipline(&self) -> Discipline {
        self.discipline
    }

    /// What it has come to.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// How many writes it did not refuse.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// How many writes replaced what their writer had not read: the update before is lost.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Writes what follows the version that was read; returns whether it did not refuse.
    pub fn write(&mut self, number: u64, before: u64) -> bool {
        let is_refused = match self.discipline {
            Discipline::Claim => number != self.fence,
            Discipline::CheckAtWrite => number < self.fence,
            Discipline::Unfenced => false,
        };
        if !is_refused {
            self.updates += 1;
            self.lost += u64::from(self.version != before);
            self.fence = number;
            self.version = before + 1;
        }
        !is_refused
    }
}
