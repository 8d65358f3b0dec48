//! What a store is, and what can be promised on it, as a page for people.

use std::fmt;

/// What a look at a store has found.
#[derive(Clone, Debug, Default)]
pub struct Diagnostics {
    /// What it is: a block for the store, and one for each of its servers.
    pub blocks: Vec<Block>,
    /// The promises, where enough is known to say what becomes of them.
    pub promises: Vec<Promise>,
    /// Why it is refused, and what overrides that.
    pub refusals: Vec<String>,
    /// Why it cannot be used at the moment, though a gateway may start and wait for it.
    pub unready: Vec<String>,
    /// What of it cannot be reached, and why.
    pub unreachable: Vec<String>,
    /// What is kept there that no gateway can read.
    pub unreadable: Vec<String>,
    /// What puts something at risk, and is no reason to refuse it.
    pub warnings: Vec<String>,
}

/// Rows of a name and a value.
#[derive(Clone, Debug, Default)]
pub struct Block(pub Vec<(&'static str, String)>);

/// A promise by its number, and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// What is promised.
    pub text: &'static str,
    /// Whether it holds.
    pub status: PromiseStatus,
}

/// Whether a promise holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromiseStatus {
    /// It does.
    Holds,
    /// It does, unless this happens.
    HoldsUnless(String),
    /// It does not, because of this.
    Fails(String),
}

impl PromiseStatus {
    /// A promise that holds unless one of these happens.
    pub fn unless(exceptions: &[&str]) -> Self {
        if exceptions.is_empty() { Self::Holds } else { Self::HoldsUnless(exceptions.join(", or ")) }
    }
}

/// The promises I1 to I5, in their order.
pub fn promises(statuses: [PromiseStatus; 5]) -> Vec<Promise> {
    let texts = [
        "I1  no fencing token is given twice",
        "I2  fencing tokens grow",
        "I3  one holder at a time",
        "I4  only the holder renews and releases",
        "I5  a resource that claims loses no update",
    ];
    let promise = |(text, status)| Promise { text, status };
    texts.into_iter().zip(statuses).map(promise).collect()
}

impl Diagnostics {
    /// Whether locks can be kept there, and those that are there can be read.
    pub fn is_usable(&self) -> bool {
        self.is_fit() && self.unready.is_empty()
    }

    fn is_fit(&self) -> bool {
        self.refusals.is_empty() && self.unreachable.is_empty() && self.unreadable.is_empty()
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.0.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        self.0.iter().try_for_each(|(name, value)| writeln!(f, "{name:width$}  {value}"))
    }
}

impl fmt::Display for PromiseStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Holds => f.write_str("holds"),
            Self::HoldsUnless(exception) => write!(f, "holds, unless {exception}"),
            Self::Fails(reason) => write!(f, "does not hold: {reason}"),
        }
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for block in &self.blocks {
            writeln!(f, "{block}")?;
        }
        if !self.promises.is_empty() {
            let rows = self.promises.iter().map(|promise| (promise.text, promise.status.to_string()));
            writeln!(f, "{}", Block(rows.collect()))?;
        }
        let said = [
            ("cannot be reached", &self.unreachable),
            ("cannot be used now", &self.unready),
            ("refused", &self.refusals),
            ("cannot be read", &self.unreadable),
            ("warning", &self.warnings),
        ];
        for (kind, texts) in said {
            texts.iter().try_for_each(|text| writeln!(f, "{kind}: {text}"))?;
        }
        f.write_str(match (self.is_usable(), self.is_fit()) {
            (true, _) => "It can be used.\n",
            (false, true) => "It cannot be used now.\n",
            (false, false) => "It cannot be used.\n",
        })
    }
}
