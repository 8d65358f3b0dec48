//! Taking a key out of a keys file, which people write too: all else in it stays as it stands.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;

use toml::de::DeTable;

use super::keys_file::parse;
use super::{Entry, KeyId};

/// Removes the entry of this id, and returns it. A new file takes the place of the old one at once, with its owner and its
/// mode, so that a gateway reads the one or the other.
pub fn revoke(id: &KeyId, file: &Path) -> io::Result<Entry> {
    // A link stays one.
    let file = file.canonicalize()?;
    let before = fs::read_to_string(&file)?;
    let (entry, after) =
        without(id, &before).map_err(|problem| io::Error::new(ErrorKind::InvalidData, problem))?;
    let new = file.with_file_name(format!(".fencepost-{:016x}", rand::random::<u64>()));
    let replaced = write_like(&file, &new, &after).and_then(|()| {
        if fs::read_to_string(&file)? != before {
            return Err(io::Error::other("somebody else has changed the file meanwhile: try again"));
        }
        fs::rename(&new, &file).map_err(|error| match error.kind() {
            // As of a container that has only this file from outside.
            ErrorKind::ResourceBusy => {
                io::Error::other("the file is a mount of its own: remove the entry by hand")
            }
            _ => error,
        })
    });
    if replaced.is_err() {
        // What went wrong is told; a file that stays behind does no harm.
        let _ = fs::remove_file(&new);
    }
    replaced.map(|()| entry)
}

/// Writes a new file that the same users can read.
fn write_like(old: &Path, new: &Path, text: &str) -> io::Result<()> {
    let about = old.metadata()?;
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(new)?;
    let own = file.metadata()?;
    if (own.uid(), own.gid()) != (about.uid(), about.gid()) {
        fchown(&file, Some(about.uid()), Some(about.gid())).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("a new file cannot get its owner ({error}): run this as its owner"),
            )
        })?;
    }
    file.set_permissions(PermissionsExt::from_mode(about.mode() & 0o7777))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// The entry, and the text without it: from its `[[key]]`, with the comment right above, to the next one.
fn without(id: &KeyId, text: &str) -> Result<(Entry, String), String> {
    let wrong = |error: super::KeysFileError| format!("the file is wrong: {error}");
    let mut left = parse(text).map_err(wrong)?;
    let at = left.iter().position(|entry| entry.id == *id);
    let at = at.ok_or("no key there has this id: `fencepost key list` shows the ids")?;
    let entry = left.remove(at);
    if left.is_empty() {
        return Err("it is the only key, and gateways go on with the old file if the new one has no key: make its successor first, \
                    or set its expires to a time that is over"
            .to_owned());
    }
    let starts = starts(text);
    let begin = |at: usize| with_comment(text, *starts.get(at).unwrap_or(&text.len()));
    let parts = text.get(..begin(at)).zip(text.get(begin(at + 1)..));
    let after = parts.map(|(above, below)| format!("{above}{below}")).unwrap_or_default();
    let ids =
        |entries: &[Entry]| entries.iter().map(|entry| entry.id.as_str().to_owned()).collect::<Vec<_>>();
    match parse(&after) {
        Ok(entries) if ids(&entries) == ids(&left) => Ok((entry, after)),
        _ => Err("its entry does not stand by itself below a [[key]]: remove it by hand".to_owned()),
    }
}

/// Where each `[[key]]` stands.
fn starts(text: &str) -> Vec<usize> {
    let Ok(document) = DeTable::parse(text) else { return Vec::new() };
    let keys = document.get_ref().iter().find(|(name, _)| name.get_ref() == "key");
    let keys = keys.and_then(|(_, keys)| keys.get_ref().as_array());
    keys.into_iter().flatten().map(|key| key.span().start).collect()
}

/// Where the line begins, or the comment that stands right above it.
fn with_comment(text: &str, at: usize) -> usize {
    let line = |at: usize| text.get(..at).and_then(|above| above.rfind('\n')).map_or(0, |end| end + 1);
    let mut begin = if at == text.len() { at } else { line(at) };
    while at < text.len() && begin > 0 {
        let above = line(begin - 1);
        if !text.get(above..begin).is_some_and(|line| line.trim_start().starts_with('#')) {
            break;
        }
        begin = above;
    }
    begin
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: &str) -> String {
        format!(
            "[[key]]\nid = \"{id}\"\nname = \"[[key]]\"\nsecret_sha256 = \"{}\"\nevery_key = true # all\nallow = [\"list\"]\n",
            "0".repeat(64)
        )
    }

    fn id(text: &str) -> KeyId {
        KeyId::parse(text).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn the_rest_of_the_file_stays_as_it_stands() {
        let [a, b, c] = ["aaaaaaaaaaaa", "bbbbbbbbbbbb", "cccccccccccc"].map(entry);
        let text =
            format!("# Our keys.\n\n{a}\n# The second,\n# of two.\n{b}\n\n # The third.\n{c}# The end.\n");
        for (gone, expected) in [
            (
                "aaaaaaaaaaaa",
                format!("# Our keys.\n\n# The second,\n# of two.\n{b}\n\n # The third.\n{c}# The end.\n"),
            ),
            ("bbbbbbbbbbbb", format!("# Our keys.\n\n{a}\n # The third.\n{c}# The end.\n")),
            ("cccccccccccc", format!("# Our keys.\n\n{a}\n# The second,\n# of two.\n{b}\n\n")),
        ] {
            let after = without(&id(gone), &text).map(|(entry, after)| (entry.id, after));
            assert_eq!(after, Ok((id(gone), expected)), "{gone}");
        }
    }

    #[test]
    fn what_cannot_be_taken_out_alone_stays() {
        let (a, b) = (entry("aaaaaaaaaaaa"), entry("bbbbbbbbbbbb"));
        let inline = |entry: &str| {
            entry.trim_start_matches("[[key]]\n").replace(" # all", "").trim_end().replace('\n', ", ")
        };
        let list = format!("key = [{{ {} }}, {{ {} }}]\n", inline(&a), inline(&b));
        for (text, said) in [
            (a.clone(), "the only key"),
            (format!("{a}{b}nonsense"), "the file is wrong: line"),
            (b.clone(), "no key there"),
            (list, "by hand"),
        ] {
            let problem = without(&id("aaaaaaaaaaaa"), &text).err().unwrap_or_default();
            assert!(problem.contains(said), "{problem}: {text}");
        }
    }
}
