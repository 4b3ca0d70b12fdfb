// The search takes a word behind a dash for one to leave out: whoever types "--perf-against" means it.
document.addEventListener("input", event => {
  const box = event.target
  if (box.matches(".md-search__input")) box.value = box.value.replace(/(^|\s)-+/g, "$1")
}, true)
