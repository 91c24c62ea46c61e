-- APPLY: change terms of a namespace, and record which documents are about to be stored, so that
-- both can be reverted. All changes of a call, or none.
--
-- keys  none
-- args  1 job   2 step   3 execution   4 lease, 5 attempt, 6 token of its core job
--       7 undo token   8 prefix of the namespace's keys   9 namespace
--       10 key of the names of all namespaces   11 max namespaces   12 max terms
--       13 number of documents, then `id, revision, claimed` of each; an empty revision removes the
--       record; `claimed` is 1 for a claim on an existing document, else empty
--       then `field, before, after` of each term; empty for none, equal values for a claim
-- answers
--   ok                     done now, or by an earlier identical call
--   already, lost          the execution has ended, or another one or attempt is current
--   missing                the job does not exist
--   refused, {code, items} version_conflict: these terms differ from `before`, or these documents
--                          from the claimed ones;
--                          namespace_full, too_many_namespaces: a limit is reached
-- Nothing is written unless the answer is ok.

operations[$WF_OPERATION_APPLY] = function(_, arg, last)
  local running = running_at(arg)
  local step, execution = running.step, running.execution
  local token, prefix, namespace, namespaces = unpack(ARGV, arg + 6, arg + 9)
  local max_namespaces, max_terms, count = unpack(ARGV, arg + 10, arg + 12)
  local job = load_job(running.job)
  if not job then
    return found($FOUND_MISSING)
  end
  local state = execution_state(job, step, execution, running)
  if state ~= $FOUND_OK then
    return found(state)
  end
  must_be(names.jobs_with_effects, 'set')
  local kept = redis.call('HGET', job.key($KEY_OPERATIONS), token)
  local operation = kept and cjson.decode(kept) or { [$OPERATION_FIELD_EFFECTS] = {
    [$EFFECT_STEP] = step, [$EFFECT_EXECUTION] = execution, [$EFFECT_PREFIX] = prefix,
    [$EFFECT_NAMESPACE] = namespace, [$EFFECT_NAMESPACES] = namespaces,
    [$EFFECT_TERMS] = {}, [$EFFECT_DOCUMENTS] = {}, [$EFFECT_CLAIMS] = {},
    [$EFFECT_OWNER] = job.id .. ' ' .. token,
  } }
  local effects = operation[$OPERATION_FIELD_EFFECTS]
  check_namespace(effects)

  local ontology = rag_key(effects, $RAG_ONTOLOGY)
  local first_term = arg + 13 + 3 * tonumber(count)
  local conflicts, changes, claimed, grows = {}, {}, {}, 0
  for at = arg + 13, first_term - 1, 3 do
    if ARGV[at + 2] ~= '' then
      claimed[#claimed + 1] = $CLAIM_DOCUMENT .. ARGV[at]
      if state_of_document(rag_key(effects, $RAG_DOCUMENTS), ARGV[at], ARGV[at + 1]) ~= 'applied' then
        conflicts[#conflicts + 1] = ARGV[at]
      end
    end
  end
  for at = first_term, last, 3 do
    local field, before, after = unpack(ARGV, at, at + 2)
    local now = redis.call('HGET', ontology, field) or ''
    if now ~= after then
      if now ~= before then
        conflicts[#conflicts + 1] = field
      end
      changes[#changes + 1] = { field = field, before = before, after = after }
      grows = grows + (before == '' and 1 or 0) - (after == '' and 1 or 0)
    elseif before == after then
      claimed[#claimed + 1] = $CLAIM_TERM .. field
    end
  end
  if #conflicts > 0 then
    return refuse($CODE_VERSION_CONFLICT, { [$FACT_ITEMS] = conflicts })
  end
  if grows > 0 and redis.call('HLEN', ontology) + grows > tonumber(max_terms) then
    return refuse($CODE_NAMESPACE_FULL)
  end
  if #changes > 0 and redis.call('SISMEMBER', namespaces, namespace) == 0
    and redis.call('SCARD', namespaces) >= tonumber(max_namespaces) then
    return refuse($CODE_TOO_MANY_NAMESPACES)
  end

  for at = arg + 13, first_term - 1, 3 do
    if ARGV[at + 2] == '' then
      effects[$EFFECT_DOCUMENTS][ARGV[at]] = ARGV[at + 1] ~= '' and ARGV[at + 1] or nil
    end
  end
  for _, change in ipairs(changes) do
    -- A term that this operation has changed before is reverted to its original value, unless
    -- another operation changed it in between: then to the value of that one.
    local known = effects[$EFFECT_TERMS][change.field]
    local continues = known and known[$EFFECT_AFTER] == change.before
    effects[$EFFECT_TERMS][change.field] = {
      [$EFFECT_BEFORE] = continues and known[$EFFECT_BEFORE] or change.before,
      [$EFFECT_AFTER] = change.after,
    }
  end
  for _, claim in ipairs(claimed) do
    effects[$EFFECT_CLAIMS][claim] = true
  end
  redis.call('HSET', job.key($KEY_OPERATIONS), token, cjson.encode(operation))
  redis.call('EXPIRE', job.key($KEY_OPERATIONS), job.ttl_s())
  redis.call('HSET', job.key($KEY_STEPS), step .. '.' .. $FIELD_EFFECTS, token)
  redis.call('SADD', names.jobs_with_effects, job.id)
  redis.call('EXPIRE', names.jobs_with_effects, '$LONGEST_TTL_S')
  for _, claim in ipairs(claimed) do
    claims.add(effects, claim)
  end
  for _, change in ipairs(changes) do
    if change.after == '' then
      redis.call('HDEL', ontology, change.field)
    else
      redis.call('HSET', ontology, change.field, change.after)
    end
  end
  if #changes > 0 then
    redis.call('SADD', namespaces, namespace)
    record_change(effects, true)
  end
  return found($FOUND_OK)
end
