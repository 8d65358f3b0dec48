"""Does what a test says, line by line, with the client that openapi-python-client makes of the document."""
import os
import sys
import uuid

from fencepost_api import Client
from fencepost_api.api.locks import acquire_lock, get_lock_by_query, release_lock_by_query, renew_lock
from fencepost_api.models import Grant, Lock, Problem

client = Client(base_url=os.environ["FENCEPOST_URL"], raise_on_unexpected_status=True)
token = uuid.uuid4().hex
key = ""

for line in sys.stdin:
    match line.split():
        case ["acquire", key, ttl_s, wait_s]:
            grant = acquire_lock.sync(key, client=client, ttl=f"{ttl_s}s", wait=f"{wait_s}s", lease_token=token)
            if isinstance(grant, Problem):
                assert grant.type_.startswith("/problems/") and grant.status == 423 and grant.holder
                print("busy", flush=True)
                continue
            assert isinstance(grant, Grant) and grant.token == token
            print("granted", grant.fencing_token, flush=True)
        case ["renew", ttl_s]:
            renewed = renew_lock.sync(key, client=client, ttl=f"{ttl_s}s", lease_token=token)
            assert isinstance(renewed, Grant)
            lock = get_lock_by_query.sync(client=client, key=key, lease_token=token)
            assert isinstance(lock, Lock) and lock.yours and lock.fencing_token == renewed.fencing_token
            print("renewed", flush=True)
        case ["release"]:
            released = release_lock_by_query.sync_detailed(client=client, key=key, lease_token=token)
            assert released.status_code == 204
            print("released", flush=True)
