//! Owners by name, as some protocols have them: who says the name of a grant's owner may end it.
//!
//! A name is used again for the next lock, and a lease token never is. So the owner of each grant is the name and a nonce, and its
//! token is made of both: a gateway that finds the grant can make the token again, also after a restart. It keeps nothing from
//! those who may take the lock, as they may end it by the name alone.

use sha2::{Digest, Sha256};

use super::steps::in_doubt;
use crate::api::extract::{bad_parameter, refuse_secret};
use crate::api::problem::{Problem, ProblemType};
use crate::api::state::AppState;
use crate::lock::{Hex, Inspected, Lease, LeaseToken, LockKey, Owner, Released};

/// An owner of a lock, by name.
pub(super) struct NamedOwner<'a> {
    /// The protocol: names of two of them differ.
    pub(super) tool: &'static str,
    pub(super) key: &'a LockKey,
    pub(super) name: &'a str,
}

/// What is found of a lock.
pub(super) enum Found {
    /// The grants of this owner, at least one; the oldest first.
    Own(Vec<NamedGrant>),
    /// Others hold it.
    OfOthers,
    /// No client holds it, also where `min_hold` keeps it taken.
    Free,
}

/// A grant of a named owner, made or to be made.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct NamedGrant {
    pub(super) owner: Owner,
    pub(super) token: LeaseToken,
}

impl NamedOwner<'_> {
    /// The longest name, in bytes: a nonce stands behind it.
    const MAX_BYTES: usize = Owner::MAX_BYTES - 17;

    /// That a name, which the body calls so, can be shown.
    pub(super) fn check(parameter: &str, name: &str) -> Result<(), Problem> {
        refuse_secret(parameter, name.as_bytes(), None)?;
        if (1..=Self::MAX_BYTES).contains(&name.len()) && !name.chars().any(char::is_control) {
            return Ok(());
        }
        let most = Self::MAX_BYTES;
        let detail = format!("{parameter} has 1 to {most} bytes without control characters");
        Err(bad_parameter(parameter, detail))
    }

    /// What the next grant says of its owner, and its token; `None` for a name that cannot be shown.
    pub(super) fn next(&self) -> Option<NamedGrant> {
        self.of_nonce(&Hex(&rand::random::<[u8; 8]>()).to_string())
    }

    fn of_nonce(&self, nonce: &str) -> Option<NamedGrant> {
        let parts = [self.tool, self.key.as_str(), self.name, nonce];
        let hash = parts.iter().fold(Sha256::new(), |hash, part| {
            // The length, so that no two differ only in where a part ends.
            hash.chain_update((part.len() as u64).to_be_bytes()).chain_update(part)
        });
        let token = LeaseToken::parse(format!("{}-{}", self.tool, Hex(&hash.finalize())).as_bytes()).ok()?;
        let owner = Owner::parse(format!("{} {nonce}", self.name).as_bytes()).ok()??;
        Some(NamedGrant { owner, token })
    }

    /// Looks who holds the lock.
    pub(super) async fn find(&self, app: &AppState) -> Result<Found, Problem> {
        let Inspected::Held { lease, sharing, .. } = app.service.inspect(self.key, None).await? else {
            return Ok(Found::Free);
        };
        let held = sharing.as_ref().map_or(1, |sharing| sharing.held);
        let mut leases = sharing.map_or_else(|| vec![lease], |sharing| sharing.holders);
        leases.sort_unstable_by_key(|lease| lease.fencing_token);
        let own: Vec<_> = leases.iter().filter_map(|lease| self.own(lease)).collect();
        match own.is_empty() {
            false => Ok(Found::Own(own)),
            true if held > leases.len() as u64 => {
                let detail =
                    "more hold the lock than can be told, so it is not known whether this owner does";
                Err(Problem::new(ProblemType::OutcomeUnknown, detail))
            }
            true if leases.iter().all(|lease| lease.is_released) => Ok(Found::Free),
            true => Ok(Found::OfOthers),
        }
    }

    fn own(&self, lease: &Lease) -> Option<NamedGrant> {
        let (name, nonce) = lease.owner()?.rsplit_once(' ')?;
        (name == self.name && !lease.is_released).then(|| self.of_nonce(nonce))?
    }

    /// Ends these grants, and says whether one of them was not over yet. What only says this owner's name is another's.
    pub(super) async fn release(&self, app: &AppState, grants: &[NamedGrant]) -> Result<Released, Problem> {
        let mut released = Released::HeldByAnother;
        for NamedGrant { token, .. } in grants {
            let has_released = released == Released::Released;
            let answer = self.release_one(app, token).await;
            let answer = answer.map_err(|problem| if has_released { in_doubt(problem) } else { problem })?;
            if !has_released {
                released = answer;
            }
        }
        Ok(released)
    }

    async fn release_one(&self, app: &AppState, token: &LeaseToken) -> Result<Released, Problem> {
        // A token that was released before is told so again, though another holds the lock meanwhile.
        Ok(match app.service.inspect(self.key, Some(token)).await? {
            Inspected::Held { yours: Some(true), .. } => app.service.release(self.key, token).await?,
            Inspected::Held { .. } => Released::HeldByAnother,
            // A copy of the request has released it meanwhile.
            Inspected::Free { .. } => Released::NotHeld,
        })
    }
}
