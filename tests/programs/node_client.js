// What it asks of node_server.js, and what it gets, a JSON object: node_client.js WORK HTTP-PORT NET-PORT.
"use strict";

const crypto = require("crypto");
const { readFile } = require("fs/promises");
const http = require("http");
const net = require("net");
const { Readable } = require("stream");
const { pipeline } = require("stream/promises");

const [work, httpPort, netPort] = process.argv.slice(2);

const digestOf = (buffers) => {
    const hash = crypto.createHash("sha256");
    let size = 0;
    for (const piece of buffers) {
        hash.update(piece);
        size += piece.length;
    }
    return { size, sha256: hash.digest("hex") };
};

const pieces = (count, size) =>
    Array.from({ length: count }, (_, i) => Buffer.alloc(size, `piece ${i} `));

async function collect(stream, dawdle) {
    const all = [];
    for await (const piece of stream) {
        all.push(piece);
        // A slow reader: the server's stream fills up and has to wait.
        if (dawdle && all.length % 64 === 0) await new Promise((done) => setTimeout(done, 2));
    }
    return all;
}

const sockets = new Set();

function ask(path, { agent, method = "GET", body = [], dawdle = false } = {}) {
    return new Promise((done, failed) => {
        const where = { host: "127.0.0.1", port: httpPort, path, method, agent };
        const request = http.request(where, async (response) => {
            try {
                done({ status: response.statusCode, body: await collect(response, dawdle) });
            } catch (error) {
                failed(error);
            }
        });
        request.on("error", failed);
        request.on("socket", (socket) => sockets.add(socket));
        if (body.length === 0) request.end();
        else pipeline(Readable.from(body), request).catch(failed);
    });
}

function half(buffers) {
    return new Promise((done, failed) => {
        const socket = net.connect({ host: "127.0.0.1", port: netPort, allowHalfOpen: true });
        socket.on("error", failed);
        const received = collect(socket, true);
        (async () => {
            await pipeline(Readable.from(buffers), socket, { end: false });
            socket.end();
            const all = Buffer.concat(await received);
            const line = all.indexOf("\n");
            done({ theirs: all.toString("latin1", 0, line), ...digestOf([all.subarray(line + 1)]) });
        })().catch(failed);
    });
}

const works = {
    // One connection for many requests, then several for many more.
    async keepalive() {
        const seen = [];
        for (const maxSockets of [1, 8]) {
            sockets.clear();
            const agent = new http.Agent({ keepAlive: true, maxSockets });
            const answers = await Promise.all(Array.from({ length: 400 }, (_, i) =>
                ask(`/bytes/${i * 37}`, { agent })));
            seen.push({ connections: sockets.size, bodies: answers.map((a) => digestOf(a.body)) });
            agent.destroy();
        }
        return seen;
    },
    async backpressure() {
        const body = pieces(640, 65536);
        return {
            sent: digestOf(body),
            server: JSON.parse(Buffer.concat((await ask("/digest", { method: "POST", body })).body)),
            got: digestOf((await ask(`/bytes/${40 << 20}/chunked`, { dawdle: true })).body),
            // Both ways at once.
            upper: digestOf((await ask("/upper", { method: "PUT", body: pieces(160, 65536),
                dawdle: true })).body),
        };
    },
    async connections() {
        const agent = new http.Agent({ keepAlive: true, maxSockets: 200 });
        const rounds = [];
        for (let round = 0; round < 5; ++round) {
            const answers = await Promise.all(Array.from({ length: 200 }, (_, i) =>
                ask(`/bytes/${10000 + i}`, { agent })));
            rounds.push(answers.map((a) => digestOf(a.body)));
        }
        agent.destroy();
        return rounds;
    },
    async half() {
        return Promise.all([0, 1, 10, 100, 200].map((n) => half(pieces(n, 50000))));
    },
    // Files that are opened where connections have just been closed.
    async files() {
        const seen = [];
        for (let round = 0; round < 20; ++round) {
            const answer = await ask(`/bytes/${round % 5 === 0 ? 4 << 20 : 1000}`, { agent: false });
            await new Promise((done) => setTimeout(done, 5));
            const files = await Promise.all(Array.from({ length: 4 }, () => readFile(__filename)));
            seen.push([digestOf(answer.body), ...files.map((file) => file.length)]);
        }
        return seen;
    },
    // The server starts a program while streams are open and in use.
    async spawn() {
        const agent = new http.Agent({ keepAlive: true, maxSockets: 4 });
        const seen = [];
        for (let i = 0; i < 5; ++i) {
            const busy = ask(`/bytes/${8 << 20}`, { agent, dawdle: true });
            const child = await ask(`/spawn/round${i}`, { agent, method: "POST",
                body: pieces(30, 20000) });
            seen.push([child.status, digestOf(child.body), digestOf((await busy).body)]);
        }
        agent.destroy();
        return seen;
    },
    async end() {
        return Buffer.concat((await ask("/end")).body).toString();
    },
};

const start = process.hrtime.bigint();
works[work]().then((result) => {
    console.log(JSON.stringify({ result, seconds: Number(process.hrtime.bigint() - start) / 1e9 }));
}, (error) => {
    console.error(error);
    process.exitCode = 1;
});
