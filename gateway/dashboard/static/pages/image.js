// One image: what became of it, live while it is worked on.

import { del, get, post, stream, url } from "../api.js";
import { h, replace } from "../dom.js";
import { bytes as size, duration } from "../format.js";
import { act, confirmDialog, jsonTree, pageHead, when } from "../ui.js";
import { TYPES, bytes, ended, nameOf, picture, stage } from "./image_parts.js";
import { folded, press } from "./parts.js";

export default async function image({ params: { id }, navigate, me }) {
  const path = url`/v1/images/${id}`;
  const node = h("div", { class: "stack" });
  const chooser = h("input", { type: "file", accept: TYPES, hidden: true, onChange: sent });
  let source = null;
  let found;
  let opened;

  async function load() {
    found = await get(path);
    draw();
    if (source || ended(found)) return;
    source = stream(`${path}/events`, {
      events: { processing: (data) => (Object.assign(found, data), draw()) },
      until: ["ready", "failed"],
      onState: (state) => state === "end" && ((source = null), found.job_id && load().catch(() => {})),
    });
  }

  async function again(button) {
    opened = found.status === "failed" ? await act(button, post(`${path}/retry-upload`)) : found;
    if (opened) chooser.click();
  }

  async function sent() {
    await act(node, bytes(opened, chooser.files[0]), "Uploaded.");
    await load();
  }

  async function remove(button) {
    const sure = await confirmDialog({ title: "Delete the image?", text: "Its bytes, its job and all that is known of it.", yes: "Delete" });
    if (sure) await act(button, async () => (await del(path), navigate("/ui/images")));
  }

  function draw() {
    const { source_bytes: bytes, file_size: stored, detector, timings_ms: took } = found;
    const facts = {
      Made: when(Date.parse(found.created_at)),
      Job: found.job_id && h("a", { href: url`/ui/jobs/${found.job_id}` }, found.job_id),
      Sent: bytes && `${size(bytes)} ${found.source_format ?? found.uploaded_type ?? ""}`,
      Was: found.original_width && `${found.original_width} × ${found.original_height}`,
      Is: stored && `${found.processed_width} × ${found.processed_height}, ${size(stored)}`,
      Faces: detector && (detector === "none" ? "nobody looked" : `${found.detections?.length ?? 0} found by ${detector}, ${found.blur ?? "not blurred"}`),
      Took: took && duration(Object.values(took).reduce((a, b) => a + b, 0)),
      "SHA-256": found.sha256 && h("code", null, found.sha256),
    };
    replace(node,
      pageHead(nameOf(found),
        me.may("submit") && (found.status === "failed" || found.upload_url) && press("Upload it again", again, { class: "primary" }),
        found.content_url && h("a", { class: "button", href: found.content_url, download: `${id}.webp` }, "Download"),
        me.may("cancel") && press("Delete", remove, { class: "danger" })),
      chooser,
      h("div", { class: "row" }, stage(found), !ended(found) && [h("progress", { max: 100, value: found.progress, "aria-label": "Progress" }), `${found.progress} %`]),
      found.error && h("div", { class: "box error" }, h("p", null, found.error), h("code", null, [found.error_code, found.reason].filter(Boolean).join(" · "))),
      h("div", { class: "two" }, found.content_url && h("div", { class: "big" }, picture(found, nameOf(found))),
        h("section", { class: "card" }, h("dl", { class: "facts" }, Object.entries(facts).map(([name, value]) => value && [h("dt", null, name), h("dd", null, value)])))),
      folded("As JSON", jsonTree(found)));
  }

  await load();
  return { title: nameOf(found), node, destroy: () => source?.close() };
}
