// The HTTP API: models, answers that grow, and problems (RFC 9457).

const TOKEN = "attendant-token";

export class Problem extends Error {
  constructor(problem) {
    super(problem.detail || problem.title);
    this.code = problem.code;
    this.fields = (problem.details ?? []).flatMap(({ fieldViolations = [] }) => fieldViolations.map(({ field }) => field));
  }
}

const UNREACHABLE = { code: "UNAVAILABLE", detail: "The server can't be reached." };
const BROKEN = { code: "UNAVAILABLE", detail: "The connection broke before the answer was complete." };

export const useToken = (token) => sessionStorage.setItem(TOKEN, token);

// The result of the promise. Unless the call was aborted, the problem replaces other errors.
async function or(problem, promise) {
  try {
    return await promise;
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Problem) throw error;
    throw new Problem(problem);
  }
}

async function call(path, body, signal) {
  const headers = {};
  const token = sessionStorage.getItem(TOKEN);
  if (token) headers.authorization = `Bearer ${token}`;
  if (body) headers["content-type"] = "application/json";
  const method = body ? "POST" : "GET";
  const response = await or(UNREACHABLE, fetch(path, { method, headers, body: body && JSON.stringify(body), signal }));
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  throw new Problem({ title: `The server answered with status ${response.status}.`, ...problem });
}

const json = async (...request) => or(BROKEN, (await call(...request)).json());

export const models = async () => (await json("v1/models")).models;

export const generate = (request, signal) => json("v1/generate", request, signal);

// The results for a list of requests, in order: {response} or {error}.
export const generateMany = async (requests, signal) => (await json("v1/generate_many", { requests }, signal)).results;

let openapi;

// The schemas of the API's messages, fetched once.
export function schemas() {
  openapi ??= json("openapi.json");
  openapi.catch(() => { openapi = undefined; });
  return openapi.then(({ components }) => components.schemas);
}

// Yields the messages of a streamed answer: {delta} and, last, {response}. A stream that ends without its response is a
// problem: what came so far is not the answer.
export async function* stream(request, signal) {
  const response = await call("v1/generate?stream=1", request, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await or(BROKEN, reader.read());
    if (done) throw new Problem(BROKEN);
    const events = (text + value).split("\n\n");
    text = events.pop();
    for (const event of events) {
      const [, name, data] = /^event: (\w+)\ndata: (.*)$/s.exec(event) ?? [];
      if (name === undefined) continue;
      if (name === "error") throw new Problem(JSON.parse(data));
      const message = JSON.parse(data);
      yield message;
      if (message.response) return;
    }
  }
}
