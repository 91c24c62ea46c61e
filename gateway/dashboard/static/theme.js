// Before the first paint, so that nothing flashes. 'light' or 'dark'; absent: as the system has it.
try {
  const chosen = localStorage.getItem("sluice.theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch {
  // A browser without storage follows the system.
}
