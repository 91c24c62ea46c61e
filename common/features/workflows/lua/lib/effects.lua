-- EFFECTS: what an operation changed outside the workflow, in a namespace of documents and terms,
-- and how that is reverted. Only workers may write there, so only their operations use this.
--
-- `operation.effects` is { step, execution, prefix, namespace, namespaces, owner, terms = { field
-- = { before, after } }, documents = { id = revision }, claims = { claim = true } }. Effects are
-- recorded before they happen, or in the same script, so every change can be reverted. A recorded
-- document may not be stored yet; a document with another revision belongs to another operation.

local function rag_key(effects, part)
  return effects[$EFFECT_PREFIX] .. ':' .. part
end

-- The next version of the namespace, by which workers notice a change.
local function bump(effects)
  local version = rag_key(effects, $RAG_VERSION)
  local last = tonumber(redis.call('GET', version) or '')
  local next_version = as_integer(last and last + 1 or clock[1] * 1000000 + clock[2])
  redis.call('SET', version, next_version)
  return next_version
end

-- Reads one key of each type, so that a wrong type fails before anything is written.
local function check_namespace(effects)
  must_be(rag_key(effects, $RAG_ONTOLOGY), 'hash')
  must_be(rag_key(effects, $RAG_DOCUMENTS), 'hash')
  must_be(rag_key(effects, $RAG_ORDER), 'zset')
  must_be(rag_key(effects, $RAG_VERSION), 'string')
  must_be(rag_key(effects, $RAG_ONTOLOGY_VERSION), 'string')
  must_be(rag_key(effects, $RAG_CLAIMS), 'hash')
  must_be(effects[$EFFECT_NAMESPACES], 'set')
end

-- 'applied' if a term is as the operation left it, 'before' if it is as it was before.
local function state_of_term(ontology, field, change)
  local now = redis.call('HGET', ontology, field) or ''
  if now == change[$EFFECT_AFTER] then
    return 'applied'
  end
  return now == change[$EFFECT_BEFORE] and 'before' or 'changed'
end

-- 'applied', 'gone', or 'changed': another document replaced it.
local function state_of_document(documents, id, revision)
  local raw = redis.call('HGET', documents, id)
  if not raw then
    return 'gone'
  end
  local read, record = pcall(cjson.decode, raw)
  if read and type(record) == 'table' and record[$DOCUMENT_REVISION] == revision then
    return 'applied'
  end
  return 'changed'
end

-- Names of terms and documents that were changed since, sorted; if empty, it can be undone.
local function check_effects(operation)
  local effects = operation[$OPERATION_FIELD_EFFECTS]
  local changed = {}
  if not effects then
    return changed
  end
  check_namespace(effects)
  local ontology, documents = rag_key(effects, $RAG_ONTOLOGY), rag_key(effects, $RAG_DOCUMENTS)
  for field, change in pairs(effects[$EFFECT_TERMS]) do
    if state_of_term(ontology, field, change) == 'changed' then
      changed[#changed + 1] = field
    end
  end
  for id, revision in pairs(effects[$EFFECT_DOCUMENTS]) do
    if state_of_document(documents, id, revision) == 'changed' then
      changed[#changed + 1] = id
    end
  end
  table.sort(changed)
  return changed
end

local function remove_document(effects, id)
  local at = ':' .. id
  redis.call('DEL', rag_key(effects, $RAG_TEXT) .. at, rag_key(effects, $RAG_CHUNKS) .. at,
    rag_key(effects, $RAG_VECTORS) .. at)
  redis.call('ZREM', rag_key(effects, $RAG_ORDER), id)
  redis.call('HDEL', rag_key(effects, $RAG_DOCUMENTS), id)
end

-- Records a change of the terms; the namespace goes with its last term and its last document.
local function record_change(effects, terms_changed)
  local ontology, documents = rag_key(effects, $RAG_ONTOLOGY), rag_key(effects, $RAG_DOCUMENTS)
  local ontology_version = rag_key(effects, $RAG_ONTOLOGY_VERSION)
  local has_terms = redis.call('EXISTS', ontology) == 1
  if not has_terms and redis.call('EXISTS', documents) == 0 then
    redis.call('DEL', rag_key(effects, $RAG_ORDER), rag_key(effects, $RAG_VERSION),
      rag_key(effects, $RAG_VECTOR_SET), rag_key(effects, $RAG_CLAIMS), ontology_version)
    redis.call('SREM', effects[$EFFECT_NAMESPACES], effects[$EFFECT_NAMESPACE])
    return
  end
  local version = bump(effects)
  if not has_terms then
    redis.call('DEL', ontology_version)
  elseif terms_changed then
    redis.call('SET', ontology_version, version)
  end
end

-- CLAIMS: operations that rely on a document or term which they found present, `job token` of
-- each, comma-separated. When an operation is undone, an entry that it created and that another
-- operation claims is kept. The other operation becomes its owner, and undoing that one removes
-- the entry. If the job of that operation is gone, the entry is kept for good.
local claims = { max_owners = 16, many = '*' }

function claims.of(effects, claim)
  local owners = {}
  local raw = redis.call('HGET', rag_key(effects, $RAG_CLAIMS), claim) or ''
  for owner in string.gmatch(raw, '[^,]+') do
    owners[#owners + 1] = owner
  end
  return owners
end

-- Beyond the maximum there is one permanent claim for all others.
function claims.add(effects, claim)
  local owners = claims.of(effects, claim)
  for _, owner in ipairs(owners) do
    if owner == effects[$EFFECT_OWNER] or owner == claims.many then
      return
    end
  end
  owners[#owners + 1] = #owners < claims.max_owners and effects[$EFFECT_OWNER] or claims.many
  redis.call('HSET', rag_key(effects, $RAG_CLAIMS), claim, table.concat(owners, ','))
end

function claims.release(effects)
  local key = rag_key(effects, $RAG_CLAIMS)
  for claim in pairs(effects[$EFFECT_CLAIMS]) do
    local others = {}
    for _, owner in ipairs(claims.of(effects, claim)) do
      if owner ~= effects[$EFFECT_OWNER] then
        others[#others + 1] = owner
      end
    end
    if #others > 0 then
      redis.call('HSET', key, claim, table.concat(others, ','))
    else
      redis.call('HDEL', key, claim)
    end
  end
end

-- The operation behind a claim, read once; false if it cannot be undone any more.
function claims.successor(owner, successors)
  if successors[owner] == nil then
    local id, token = string.match(owner, '^(%S+) (%S+)$')
    local key = id and job_of(id).key($KEY_OPERATIONS)
    local raw = key and redis.pcall('HGET', key, token)
    local operation = type(raw) == 'string' and cjson.decode(raw)
    successors[owner] = operation and operation[$OPERATION_FIELD_EFFECTS]
      and { key = key, token = token, operation = operation } or false
  end
  return successors[owner]
end

-- True if others claim it; the first of them that can be undone takes it over.
function claims.transfer(effects, claim, part, name, change, successors)
  local owners = claims.of(effects, claim)
  for _, owner in ipairs(owners) do
    local successor = claims.successor(owner, successors)
    local has = successor and successor.operation[$OPERATION_FIELD_EFFECTS][part]
    if has and not has[name] then
      has[name] = change
      break
    end
  end
  return #owners > 0
end

function claims.save(successors)
  for _, successor in pairs(successors) do
    if successor then
      redis.call('HSET', successor.key, successor.token, cjson.encode(successor.operation))
    end
  end
end

-- Reverts what is still as the operation left it; what others have changed or claim stays.
local function revert_effects(operation)
  local effects = operation[$OPERATION_FIELD_EFFECTS]
  if not effects then
    return
  end
  check_namespace(effects)
  local ontology, documents = rag_key(effects, $RAG_ONTOLOGY), rag_key(effects, $RAG_DOCUMENTS)
  local terms_changed, documents_changed, successors = false, false, {}
  claims.release(effects)
  for field, change in pairs(effects[$EFFECT_TERMS]) do
    if state_of_term(ontology, field, change) == 'applied' and not claims.transfer(
      effects, $CLAIM_TERM .. field, $EFFECT_TERMS, field, change, successors) then
      terms_changed = true
      if change[$EFFECT_BEFORE] == '' then
        redis.call('HDEL', ontology, field)
      else
        redis.call('HSET', ontology, field, change[$EFFECT_BEFORE])
      end
    end
  end
  for id, revision in pairs(effects[$EFFECT_DOCUMENTS]) do
    if state_of_document(documents, id, revision) == 'applied' and not claims.transfer(
      effects, $CLAIM_DOCUMENT .. id, $EFFECT_DOCUMENTS, id, revision, successors) then
      documents_changed = true
      remove_document(effects, id)
    end
  end
  claims.save(successors)
  if terms_changed or documents_changed then
    record_change(effects, terms_changed)
  end
end

-- Tokens of operations with effects that never completed: they are on no list, and their execution
-- does not run. `own_execution` is a running execution, which may revert its own effects.
local function incomplete_operations(job, own_execution)
  local listed = {}
  for _, token in ipairs(redis.call('LRANGE', job.key($KEY_UNDO), 0, -1)) do
    listed[token] = true
  end
  local found_tokens, waiting = {}, false
  for _, token in ipairs(redis.call('HKEYS', job.key($KEY_OPERATIONS))) do
    if not listed[token] then
      local operation = cjson.decode(redis.call('HGET', job.key($KEY_OPERATIONS), token))
      local effects = operation[$OPERATION_FIELD_EFFECTS]
      if effects then
        local execution = effects[$EFFECT_EXECUTION]
        if execution == own_execution
          or execution_state(job, effects[$EFFECT_STEP], execution) ~= $FOUND_OK then
          found_tokens[#found_tokens + 1] = { token = token, operation = operation }
        else
          waiting = true
        end
      end
    end
  end
  return found_tokens, waiting
end
