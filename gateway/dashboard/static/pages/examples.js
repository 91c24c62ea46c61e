// What to try first, by task. An echo worker takes anything.

export const EXAMPLES = {
  chat: {
    "A question": { messages: [{ role: "user", content: "Why does a sluice have two gates?" }], max_tokens: 200 },
    "Any text": { text: "hello" },
    "With a system prompt": {
      messages: [
        { role: "system", content: "Answer in one short sentence." },
        { role: "user", content: "What is a message queue?" },
      ],
      temperature: 0.2,
    },
    "With tools": { messages: [{ role: "user", content: "What is 17 * 23?" }], tools: ["calculator"] },
  },
  plan: {
    "A goal": { goal: "Move a website to another server without downtime", max_steps: 5 },
    "With context": { goal: "Write the release notes", context: "There are 40 commits since the last tag.", max_steps: 4 },
  },
  code: {
    "A function": { prompt: "A function that says whether a year is a leap year", language: "python", check: true },
    "A script": { prompt: "Count the lines of every .md file below the current directory", language: "bash" },
  },
  tool: {
    "Arithmetic": { tool: "calculator", args: { expression: "17 * 23" } },
    "The time, dry run": { tool: "now", args: {}, dry_run: true },
  },
  rag: {
    "Take a text in": { op: "ingest", document: { title: "Locks", text: "A sluice is a gate that controls a stream." } },
    "Search": { op: "query", query: "what controls a stream?", top_k: 3 },
    "Answer from documents": { op: "query", query: "What is a sluice?", answer: true },
  },
  embed: {
    "Two texts": { input: ["a gate that controls a stream", "a queue of jobs"] },
  },
};
