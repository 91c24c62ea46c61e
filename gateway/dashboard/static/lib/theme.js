// Runs before the first paint, so that the page does not flash. 'light' or 'dark'; without a stored
// choice the page follows the system. Not a module: modules run after parsing.
try {
  const theme = localStorage.getItem("sluice.theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch {
  // Without storage the page follows the system.
}
