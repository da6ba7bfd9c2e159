// The HTTP API: models, answers that grow, and problems (RFC 9457).

const TOKEN = "attendant-token";

export class Problem extends Error {
  constructor(problem) {
    super(problem.detail || problem.title);
    this.code = problem.code;
  }
}

export const useToken = (token) => sessionStorage.setItem(TOKEN, token);

async function call(path, body, signal) {
  const headers = {};
  const token = sessionStorage.getItem(TOKEN);
  if (token) headers.authorization = `Bearer ${token}`;
  if (body) headers["content-type"] = "application/json";
  const method = body ? "POST" : "GET";
  let response;
  try {
    response = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({ code: "UNAVAILABLE", detail: "The server can't be reached." });
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({ title: response.statusText }));
  throw new Problem(problem);
}

export const models = async () => (await (await call("v1/models")).json()).models;

export const generate = async (request, signal) => (await call("v1/generate", request, signal)).json();

// Yields the messages of a streamed answer: {delta} and, last, {response}.
export async function* stream(request, signal) {
  const response = await call("v1/generate?stream=1", request, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (text + value).split("\n\n");
    text = events.pop();
    for (const event of events) {
      const [, name, data] = /^event: (\w+)\ndata: (.*)$/.exec(event);
      if (name === "error") throw new Problem(JSON.parse(data));
      yield JSON.parse(data);
    }
  }
}
