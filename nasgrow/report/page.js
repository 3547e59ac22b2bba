// Show the tooltip nearest to the pointer, at once and on touch. Without this script, browsers show titles.
const shown = document.body.appendChild(document.createElement("div"));
shown.id = "tip";
shown.setAttribute("role", "status");
for (const drawn of document.querySelectorAll("figure svg")) {
  const tips = [...drawn.querySelectorAll(".tips circle")].map(circle => {
    const text = circle.textContent;
    circle.replaceChildren();
    return { circle, text };
  });
  drawn.addEventListener("pointermove", event => {
    let best = null, near = 24;
    for (const tip of tips) {
      const box = tip.circle.getBoundingClientRect();
      const apart = Math.hypot(event.clientX - box.x - box.width / 2, event.clientY - box.y - box.height / 2);
      if (apart < near) [best, near] = [tip, apart];
    }
    shown.textContent = best ? best.text : "";
    shown.style.display = best ? "block" : "none";
    const right = document.documentElement.clientWidth - shown.offsetWidth - 8;
    shown.style.left = `${Math.max(8, Math.min(event.clientX + 14, right))}px`;
    shown.style.top = `${event.clientY + 18}px`;
  });
  drawn.addEventListener("pointerleave", () => { shown.style.display = "none"; });
}
