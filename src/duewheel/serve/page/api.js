// Requests to the API, at the place that served this page and nowhere else.
//
// The token is kept in this module's memory: a reload forgets it, no other page can read it, and
// nothing stores it. A request goes out without one first; only a 401, or the 403 for a token that
// only reads, asks for it: where changes are off, or a proxy has logged people in, the page asks for
// none.

import { printable } from "./format.js";

const READ_MS = 15_000;
const CHANGE_MS = 60_000; // a change waits for Kafka, then for its reply

let token = null;
let askForToken = async () => null;
let onToken = () => {};

/** A request that failed. */
export class Problem extends Error {
  /**
   * @param {number} status of the response; 0: there was none
   * @param {object} body problem details; `code` is for programs, `detail` for people
   */
  constructor(status, body) {
    super(printable(body.detail ?? body.title ?? `status ${status}`));
    this.status = status;
    this.code = body.code ?? "unknown";
    this.body = body;
  }
}

/**
 * Sets who asks the person for a token, and who hears that there is one.
 * @param {function(string): Promise<?string>} ask with the reason; resolves with null if declined
 * @param {function(boolean): void} changed with whether there is a token now
 */
export function connectToken(ask, changed) {
  askForToken = ask;
  onToken = changed;
}

/** Forgets the token. */
export function forgetToken() {
  if (token === null) {
    return;
  }
  token = null;
  onToken(false);
}

/** Reads; `parameters` that are null or empty are left out. */
export async function read(path, parameters = {}, options = {}) {
  return request("GET", url(path, parameters), { limitMs: READ_MS, ...options });
}

/** Changes something; `parameters` as of `read`. */
export async function change(method, path, body = null, parameters = {}) {
  return request(method, url(path, parameters), { limitMs: CHANGE_MS, body });
}

function url(path, parameters) {
  const given = Object.entries(parameters).filter(([, value]) => (value ?? "") !== "");
  const query = new URLSearchParams(given).toString();
  return query ? `${path}?${query}` : path;
}

async function request(method, path, options) {
  let refused = token !== null;
  let response = await attempt(method, path, options);
  while (needsToken(response)) {
    forgetToken();
    const given = options.background ? null : await askForToken(reasonFor(method, refused));
    if (given === null) {
      throw new Problem(401, { code: "unauthorized", detail: "this needs a token" });
    }
    token = given;
    refused = true;
    response = await attempt(method, path, options);
    if (!needsToken(response)) {
      onToken(true);
    }
  }
  return parsed(response);
}

function needsToken({ status, headers }) {
  return status === 401 || headers.has("WWW-Authenticate");
}

function reasonFor(method, refused) {
  if (refused) {
    return "The token was refused.";
  }
  return method === "GET" ? "Reads need a token here." : "Changes need a token.";
}

async function attempt(method, path, { limitMs, body = null }) {
  const headers = {
    Accept: "application/json",
    ...(token === null ? {} : { Authorization: `Bearer ${token}` }),
    ...(body === null ? {} : { "Content-Type": "application/json" }),
  };
  try {
    return await fetch(path, {
      method,
      headers,
      body: body === null ? null : JSON.stringify(body),
      signal: AbortSignal.timeout(limitMs),
      credentials: "same-origin",
    });
  } catch (error) {
    const isLate = error.name === "TimeoutError";
    const detail = isLate ? `no answer within ${limitMs / 1000} s` : "the API cannot be reached";
    throw new Problem(0, { code: isLate ? "timeout" : "unreachable", detail });
  }
}

async function parsed(response) {
  const body = await response.json().catch(() => null);
  if (response.ok && body !== null) {
    return body;
  }
  const { status } = response;
  throw new Problem(status, body ?? { code: "no_json", detail: `status ${status}, and no JSON` });
}
