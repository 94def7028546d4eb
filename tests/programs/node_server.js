// HTTP (with --key and --cert: HTTPS) on one port and a plain TCP service on another one.
//
//   node_server.js [--workers N] [--key FILE --cert FILE]
//
// Prints "http PORT" and "net PORT", when it listens; ends by GET /end, when its connections have.
// The plain service reads until the client's half-close, then answers with the SHA-256 of what came
// and with all of it again.
"use strict";

const { spawn } = require("child_process");
const cluster = require("cluster");
const crypto = require("crypto");
const fs = require("fs");
const http = require("http");
const https = require("https");
const net = require("net");
const { Readable, Transform } = require("stream");
const { pipeline } = require("stream/promises");

const options = {};
for (let i = 2; i < process.argv.length; i += 2) options[process.argv[i].slice(2)] = process.argv[i + 1];

// Bytes that both ends can make: never the same two times, without a long period.
function* noise(size) {
    for (let block = 0; size > 0; ++block) {
        const seed = crypto.createHash("sha256").update(`block ${block}`).digest();
        const piece = Buffer.alloc(Math.min(size, 65536), seed);
        if (piece.length >= 4) piece.writeUInt32BE(block);
        size -= piece.length;
        yield piece;
    }
}

const sha256 = () => crypto.createHash("sha256");

// Waits for each buffer to be taken, and is slow at times: so the sender has to stop and go on.
async function digest(stream, dawdle) {
    const hash = sha256();
    let size = 0;
    for await (const piece of stream) {
        hash.update(piece);
        const before = size;
        size += piece.length;
        if (dawdle && (before >> 20) !== (size >> 20)) await new Promise((done) => setTimeout(done, 5));
    }
    return { size, sha256: hash.digest("hex") };
}

const ways = {
    // N bytes of noise, with a length or in chunks.
    async bytes(request, response, size, how) {
        if (how !== "chunked") response.setHeader("Content-Length", size);
        await pipeline(Readable.from(noise(Number(size))), response);
    },
    // The same, or the part of it that the request wants.
    async part(request, response, size) {
        const all = Buffer.concat([...noise(Number(size))]);
        const range = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range || "");
        if (!range) return void response.end(all);
        const [first, last] = range.slice(1).map(Number);
        response.writeHead(206, { "Content-Range": `bytes ${first}-${last}/${size}` });
        response.end(all.subarray(first, last + 1));
    },
    async digest(request, response) {
        response.end(JSON.stringify(await digest(request, true)));
    },
    async upper(request, response) {
        const upper = new Transform({
            transform(piece, _, done) { done(null, piece.toString("latin1").toUpperCase()); },
        });
        await pipeline(request, upper, response);
    },
    // A child while connections are open; what it prints is the answer.
    async spawn(request, response, text) {
        const child = spawn("/bin/sh", ["-c", `cat; echo ${text}; exit 7`],
            { stdio: ["pipe", "pipe", "inherit"] });
        request.pipe(child.stdin);
        const code = new Promise((done) => child.on("close", done));
        const pieces = [];
        for await (const piece of child.stdout) pieces.push(piece);
        response.end(Buffer.concat([...pieces, Buffer.from(`code ${await code}\n`)]));
    },
    async end(request, response) {
        response.setHeader("Connection", "close");
        response.end("bye\n", stop);
    },
};

let servers = [];

function stop() {
    if (cluster.isWorker) process.send("end");
    else servers.forEach((server) => server.close());
}

async function answer(request, response) {
    const [, way, ...rest] = request.url.split("/");
    try {
        if (!(way in ways)) throw new Error(`no such way: ${way}`);
        await ways[way](request, response, ...rest);
    } catch (error) {
        console.error(`${request.url}: ${error.message}`);
        response.destroy();
    }
}

function echo(socket) {
    const pieces = [];
    const hash = sha256();
    socket.on("data", (piece) => {
        pieces.push(piece);
        hash.update(piece);
    });
    socket.on("end", () => {
        socket.write(hash.digest("hex") + "\n");
        pipeline(Readable.from(pieces), socket).catch((error) => console.error(`net: ${error.message}`));
    });
    socket.on("error", (error) => console.error(`net: ${error.message}`));
}

function serve() {
    const secrets = options.key && {
        key: fs.readFileSync(options.key),
        cert: fs.readFileSync(options.cert),
    };
    const web = secrets ? https.createServer(secrets, answer) : http.createServer(answer);
    const plain = net.createServer({ allowHalfOpen: true }, echo);
    servers = [web, plain];
    // Workers share what the primary listens on: port 0 is the same port for all of them.
    web.listen(0, "127.0.0.1", () => plain.listen(0, "127.0.0.1", () => {
        const ports = { http: web.address().port, net: plain.address().port };
        if (cluster.isWorker) process.send(ports);
        else report(ports);
    }));
}

function report(ports) {
    console.log(`http ${ports.http}`);
    console.log(`net ${ports.net}`);
}

if (cluster.isPrimary && options.workers) {
    let ready = 0;
    for (let i = 0; i < Number(options.workers); ++i) {
        cluster.fork().on("message", (message) => {
            if (message === "end") cluster.disconnect();
            else if (++ready === Number(options.workers)) report(message);
        });
    }
} else {
    serve();
}
