/** Where to go after signing in: only to a page of ours, and not to sign in again. */
export function back(path) {
  const ours = path && /^\/ui(\/(?!\/)|\?|$)/.test(path) && !path.startsWith("/ui/login");
  return ours ? path : "/ui";
}
