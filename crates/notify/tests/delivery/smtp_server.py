"""An SMTP server for tests. Prints its port, and then each message as a line of JSON."""

import asyncio
import json
import ssl
import sys

from aiosmtpd.smtp import SMTP, AuthResult

tls, certificate, key = sys.argv[1:4]
context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
context.load_cert_chain(certificate, key)


class Handler:
    async def handle_RCPT(self, server, session, envelope, address, rcpt_options):
        if address.startswith("unknown"):
            return "550 5.1.1 no such user"
        if address.startswith("busy"):
            return "451 4.3.0 try again later"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        message = {
            "from": envelope.mail_from,
            "to": envelope.rcpt_tos,
            "is_encrypted": session.ssl is not None or tls == "implicit",
            "user": session.auth_data.decode() if session.auth_data else None,
            "text": envelope.content.decode("ascii"),
        }
        print(json.dumps(message), flush=True)
        return "250 accepted"


def authenticate(server, session, envelope, mechanism, login):
    if (login.login, login.password) == (b"farrier", b"s3cret-password"):
        return AuthResult(success=True, auth_data=login.login)
    # A server that repeats what it got.
    return AuthResult(success=False, handled=False, message=f"535 no {login.password.decode()}")


def factory():
    starttls = tls == "starttls"
    return SMTP(
        Handler(),
        hostname="smtp.test",
        require_starttls=starttls,
        tls_context=context if starttls else None,
        auth_required=tls != "none",
        auth_require_tls=starttls,
        authenticator=authenticate,
    )


async def main():
    loop = asyncio.get_running_loop()
    implicit = context if tls == "implicit" else None
    server = await loop.create_server(factory, "127.0.0.1", 0, ssl=implicit)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
