// Browsers start no workers from files. A page that was opened from the disk searches in a hidden frame.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inner = frame.contentWindow
      const load = source => new Promise((resolve, reject) => {
        const script = inner.document.createElement("script")
        script.src = source
        script.onload = resolve
        script.onerror = reject
        inner.document.body.append(script)
      })
      inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      inner.importScripts = (...urls) => urls.reduce((done, u) => done.then(() => load(u)), Promise.resolve())
      this.loaded = load(new URL(url, document.baseURI).href)
      this.inner = inner
    }
    postMessage(data) {
      this.loaded.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })))
    }
    terminate() {}
  }
