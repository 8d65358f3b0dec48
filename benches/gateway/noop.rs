//! What an axum handler costs that does nothing: the same answers as the gateway's, by heart.

use std::net::SocketAddr;
use std::process::Command;

use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::{get, put};
use axum::serve::ListenerExt;
use axum::{Json, Router};
use serde::Serialize;
use tokio::net::TcpListener;

use crate::servers::{Server, free_address};

/// The program runs itself with this argument, since the handler needs a process whose CPU time is its own.
pub const ARGUMENT: &str = "noop-server";

const TOKEN: &str = "~5f2b1c0e9d8a4b7c8e6f1a2b3c4d5e6f";
/// The fields that all answers of the gateway have.
const COMMON: [(&str, &str); 2] = [("x-request-id", "85dcf52a0184bc90"), ("cache-control", "no-store")];

#[derive(Serialize)]
struct Grant {
    key: String,
    token: &'static str,
    fencing_token: u64,
    ttl_ms: u64,
    expires_at: &'static str,
}

/// The handler, in a process of its own.
pub fn server() -> Server {
    let address = free_address();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([ARGUMENT, &address.to_string()]);
    Server::of_command("no-op handler", address, command)
}

/// Serves until the process is ended. The runtime is the one that the gateway has too.
#[tokio::main]
pub async fn serve(address: SocketAddr) {
    let listener = TcpListener::bind(address).await.unwrap().tap_io(|stream| {
        stream.set_nodelay(true).unwrap();
    });
    let router = Router::new()
        .route("/locks/{key}", put(acquire).delete(async || (StatusCode::NO_CONTENT, COMMON)))
        .route("/readyz", get(async || "ready"));
    axum::serve(listener, router).await.unwrap();
}

async fn acquire(Path(key): Path<String>) -> impl IntoResponse {
    let grant = Grant {
        key,
        token: TOKEN,
        fencing_token: 1_795_240_800_123_456,
        ttl_ms: 29_999,
        expires_at: "2026-11-21T06:00:30.123Z",
    };
    let headers = [("fencing-token", "1795240800123456"), ("lease-token", TOKEN)];
    (StatusCode::CREATED, COMMON, headers, Json(grant))
}
