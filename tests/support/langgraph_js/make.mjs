// Makes a database whose rows are in threads.sql, as text, and states.jsonl: what LangGraph.js says of each checkpoint.
//     npm install @langchain/core@1 @langchain/langgraph@1.7.3 @langchain/langgraph-checkpoint-sqlite@1.0.4
//     node make.mjs threads.db > states.jsonl
import { Annotation, Command, DeltaChannel, END, START, StateGraph, interrupt, messagesDeltaReducer, messagesStateReducer } from "@langchain/langgraph";
import { SqliteSaver } from "@langchain/langgraph-checkpoint-sqlite";
import { AIMessage, HumanMessage } from "@langchain/core/messages";

const saver = SqliteSaver.fromConnString(process.argv[2]);
const merge = (files, update) => Object.fromEntries(Object.entries({ ...files, ...update }).filter(([, data]) => data !== null));
const mergeAll = (files, updates) => updates.reduce(merge, files ?? {});
const record = (text) => ({ content: text.split("\n"), created_at: "2026-01-01T00:00:00.000Z", modified_at: "2026-01-01T00:00:00.000Z" });

function graphOf(delta) {
  const State = Annotation.Root({
    messages: delta ? new DeltaChannel(messagesDeltaReducer, { snapshotFrequency: 2 }) : Annotation({ reducer: messagesStateReducer, default: () => [] }),
    files: delta ? new DeltaChannel(mergeAll, { snapshotFrequency: 3, initialValueFactory: () => ({}) }) : Annotation({ reducer: merge, default: () => ({}) }),
    count: Annotation(),
    odd: Annotation(),
  });
  const work = (state) => {
    const n = (state.count ?? 0) + 1;
    return { messages: [new AIMessage({ id: `a${n}`, content: `step ${n}` })], files: { [`/${n}`]: record(`${n}\n`), [`/${n - 2}`]: null }, count: n, odd: new Set([n]) };
  };
  const ask = (state) => (state.count === 5 ? { messages: [new HumanMessage({ id: "answer", content: interrupt("go on?") })] } : {});
  return new StateGraph(State).addNode("work", work).addNode("ask", ask).addEdge(START, "work").addEdge("work", "ask")
    .addConditionalEdges("ask", (state) => (state.count % 3 ? "work" : END)).compile({ checkpointer: saver });
}
for (const name of ["delta", "whole"]) {
  const graph = graphOf(name === "delta");
  const thread = { configurable: { thread_id: name } };
  await graph.invoke({ messages: [new HumanMessage({ id: "h", content: "begin" })] }, thread);
  const history = [];
  for await (const state of graph.getStateHistory(thread)) history.push(state);
  await graph.updateState(history[3].config, { files: { "/fork": record("fork") } }, "ask");
  await graph.invoke(null, thread);
  await graph.invoke({ messages: [new HumanMessage({ id: "more", content: "and again" })] }, thread);
  for await (const { values, next, config } of graph.getStateHistory(thread))
    console.log(JSON.stringify([name, config.configurable.checkpoint_id, next,
      Object.fromEntries(Object.entries(values.files ?? {}).map(([key, data]) => [key, data.content.join("\n")])),
      (values.messages ?? []).map((message) => [message.getType(), message.id, message.content])]));
}
