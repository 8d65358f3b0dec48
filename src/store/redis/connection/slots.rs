//! What the servers of a cluster say of which server has which slot.

use std::collections::HashMap;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, Value};
use tokio::time::timeout;

use crate::store::redis::address::RedisAddress;
use crate::store::redis::client::without_deadlines;
use crate::store::redis::failure::describe;
use crate::store::redis::node::Node;

/// What one server says of the slots: ranges with their primaries, and all servers that it names.
pub(super) struct SlotLayout {
    pub(super) ranges: Vec<(u16, u16, Node)>,
    pub(super) nodes: Vec<Node>,
}

impl SlotLayout {
    /// Asks a server, over the connection to it if there is one.
    pub(super) async fn ask(
        address: &RedisAddress,
        node: &Node,
        connection: &mut Option<MultiplexedConnection>,
    ) -> Result<Self, String> {
        let connection = match connection {
            Some(connection) => connection,
            None => {
                let client = address.client(node).map_err(|error| error.to_string())?;
                let connected = client.connect(without_deadlines()).await;
                connection.insert(connected.map_err(|error| describe(&error))?)
            }
        };
        let mut slots = redis::cmd("CLUSTER");
        let reply: Result<Vec<Value>, _> = slots.arg("SLOTS").query_async(connection).await;
        let ranges = reply.map_err(|error| describe(&error))?;
        let layout = Self::read(ranges, node).ok_or("its answer to CLUSTER SLOTS cannot be read")?;
        if layout.ranges.is_empty() {
            return Err("it knows no slots".to_owned());
        }
        Ok(layout)
    }

    /// Reads the reply to `CLUSTER SLOTS`. A server without a host is the one that was asked.
    fn read(ranges: Vec<Value>, asked: &Node) -> Option<Self> {
        let mut layout = Self { ranges: Vec::new(), nodes: Vec::new() };
        for range in ranges {
            let mut fields = Vec::<Value>::from_redis_value(range).ok()?.into_iter();
            let first = u16::from_redis_value(fields.next()?).ok()?;
            let last = u16::from_redis_value(fields.next()?).ok()?;
            let mut nodes = Vec::new();
            for node in fields {
                let mut node = Vec::<Value>::from_redis_value(node).ok()?.into_iter();
                let host = Option::<String>::from_redis_value(node.next()?).ok()?.unwrap_or_default();
                let named = Node { host, port: u16::from_redis_value(node.next()?).ok()? };
                // Behind the id there may be other names.
                let others =
                    node.nth(1).and_then(|names| HashMap::<String, String>::from_redis_value(names).ok());
                let address = others.and_then(|mut names| names.remove("ip"));
                let host = address.unwrap_or_else(|| asked.host.clone());
                nodes.push(if named.is_known() { named } else { Node { host, ..named } });
            }
            layout.ranges.push((first, last, nodes.first()?.clone()));
            layout.nodes.extend(nodes);
        }
        Some(layout)
    }
}

/// The primaries of a cluster, by the word of the first server that can be asked.
pub(crate) async fn primaries(address: &RedisAddress, patience: Duration) -> Result<Vec<Node>, String> {
    let mut last_error = String::new();
    for node in address.nodes() {
        let layout = match timeout(patience, SlotLayout::ask(address, node, &mut None)).await {
            Ok(Ok(layout)) => layout,
            Ok(Err(reason)) => {
                last_error = format!("{node}: {reason}");
                continue;
            }
            Err(_) => {
                last_error = format!("{node} does not answer");
                continue;
            }
        };
        let mut primaries: Vec<_> = layout.ranges.into_iter().map(|(_, _, node)| node).collect();
        primaries.sort_unstable_by_key(Node::to_string);
        primaries.dedup();
        return Ok(primaries);
    }
    Err(last_error)
}
