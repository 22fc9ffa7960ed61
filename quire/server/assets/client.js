// Talking to the server: the key, in memory alone, and requests that say what went wrong.
"use strict";
quire.client = (() => {
  let key = "";
  const given = new URLSearchParams(location.hash.slice(1)).get("key");
  if (given) {
    key = given; // of a link that `quire serve` printed; nothing of it stays in the address
    history.replaceState(null, "", location.pathname);
  }
  const headers = () => key ? { Authorization: `Bearer ${key}` } : {};

  class Refused extends Error {
    constructor(status, message) {
      super(message);
      this.status = status;
    }
  }

  function reason(status, text) {
    try {
      return new Refused(status, JSON.parse(text).error.message);
    } catch {
      return new Refused(status, `The server answered with status ${status}.`);
    }
  }

  // From where the page is: a proxy may have the server below a path of its own.
  const here = (path) => `.${path}`;

  async function request(method, path, body) {
    const options = { method, headers: headers(), cache: "no-store" };
    if (body !== undefined) {
      options.headers["Content-Type"] = "application/json";
      options.body = JSON.stringify(body);
    }
    let response;
    try {
      response = await fetch(here(path), options);
    } catch {
      throw new Refused(0, "The server does not answer.");
    }
    const text = await response.text();
    if (!response.ok) throw reason(response.status, text);
    return JSON.parse(text);
  }

  // With XMLHttpRequest, since fetch does not say how much was sent.
  function upload(file, name, progress) {
    return new Promise((resolve, reject) => {
      const form = new FormData();
      form.append("purpose", "batch");
      form.append("file", file, name);
      const sending = new XMLHttpRequest();
      sending.open("POST", here("/v1/files"));
      for (const [header, value] of Object.entries(headers())) sending.setRequestHeader(header, value);
      sending.upload.addEventListener("progress", (event) => {
        if (event.lengthComputable) progress(event.loaded / event.total);
      });
      sending.addEventListener("load", () => {
        if (sending.status === 200) resolve(JSON.parse(sending.responseText));
        else reject(reason(sending.status, sending.responseText));
      });
      sending.addEventListener("error", () => reject(new Refused(0, "The upload broke off.")));
      sending.send(form);
    });
  }

  // The link works once and for a minute, so a browser may follow it without the key.
  async function download(path) {
    const { url } = await request("POST", path);
    const link = quire.element("a", { href: here(url), download: "" });
    document.body.append(link);
    link.click();
    link.remove();
  }

  const isOpen = () => key !== "";
  return { request, upload, download, isOpen, setKey: (value) => { key = value; } };
})();

quire.say = (id, text, isError) => {
  const place = document.getElementById(id);
  if (place.textContent !== text) place.textContent = text;
  place.classList.toggle("error", Boolean(isError));
};
