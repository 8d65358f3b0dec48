//! What clients send: arrays of texts.

/// Takes the first whole command from what came, if there is one.
pub(crate) fn take_command(input: &mut Vec<u8>) -> Result<Option<Vec<Vec<u8>>>, &'static str> {
    let mut at = 0;
    let Some(count) = take_number(input, &mut at, b'*')? else { return Ok(None) };
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let Some(length) = take_number(input, &mut at, b'$')? else { return Ok(None) };
        let Some(word) = input.get(at..at + length) else { return Ok(None) };
        if input.len() < at + length + 2 {
            return Ok(None);
        }
        words.push(word.to_vec());
        at += length + 2;
    }
    input.drain(..at);
    Ok(Some(words))
}

fn take_number(input: &[u8], at: &mut usize, kind: u8) -> Result<Option<usize>, &'static str> {
    let rest = &input[*at..];
    let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
    if rest[0] != kind {
        return Err("unexpected type");
    }
    let number = std::str::from_utf8(&rest[1..end]).ok().and_then(|number| number.parse().ok());
    *at += end + 2;
    number.ok_or("invalid length").map(Some)
}
