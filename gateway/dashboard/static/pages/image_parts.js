// What the pages about images share.

import { post, put, url } from "../api.js";
import { h } from "../dom.js";
import { badge } from "../ui.js";

export const TYPES = "image/jpeg,image/png,image/webp,image/gif,image/heic,image/heif,image/avif,image/tiff";
const UNKNOWN = "application/octet-stream";

export const ended = (image) => image.status === "processed" || image.status === "failed";
export const nameOf = (image) => image.filename ?? image.image_id.slice(0, 8);
export const stage = (image) => badge(image.status, ended(image) ? image.status : image.stage);

/** The image, or how far it is. What lies in a bucket cannot be shown here. */
export function picture(image, alt = "") {
  const box = h("div", { class: "pic" });
  if (image.dominant_color) box.style.backgroundColor = image.dominant_color;
  const onError = () => box.replaceChildren("no preview");
  if (image.content_url) box.append(h("img", { src: image.content_url, alt, loading: "lazy", onError }));
  else box.append(image.status === "failed" ? "✗" : h("progress", { max: 100, value: image.progress, "aria-label": "Progress" }));
  return box;
}

/** Make an image and send its bytes; returns its id. */
export async function upload(file, detect) {
  const filename = file.name.replace(/\p{C}/gu, "").slice(0, 255) || "image";
  const made = await post("/v1/images", { filename, detect });
  await bytes(made, file);
  return made.image_id;
}

/** The bytes of one that waits for them. */
export function bytes({ image_id: id, upload_token: token }, file) {
  const headers = { "Content-Type": TYPES.includes(file.type) ? file.type || UNKNOWN : UNKNOWN, ...(token && { "X-Upload-Token": token }) };
  return put(url`/v1/images/${id}/upload`, file, { headers });
}
